"""Cells in a real Jupyter kernel, where rich draws through IPython's display."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
# Of the guide, in small.
GUIDE = (ROOT / "docs" / "library.md").read_text()
OWN_TRAINER = re.search(r"^## In a Trainer of your own\n\n```python\n(.*?)^```", GUIDE, re.M | re.S)[1]
SMALL = {
    'experiment="additions"': '"scale.num_rollout_batches=1", experiment="additions"',
    "staleness=8": "staleness=4",
    "logger=..., callbacks=[...]": "logger=False",
}
BAR = """
from rich.progress import Progress
from bapo_lightning.system.printable import say

with Progress() as bar:
    bar.add_task("x")
    say("held out\\n  right\\n  wrong")
"""


def texts(notebook, folder):
    """Everything that the cells of a notebook show."""
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "".join(item.get("text") or item.get("data", {}).get("text/plain", "") for item in shown)


def cell(source):
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])


def test_lines_are_printed_once_next_to_a_bar_of_rich(tmp_path):
    shown = texts(cell(BAR), tmp_path)
    assert [shown.count(line) for line in ("held out", "  right", "  wrong")] == [1, 1, 1]


@pytest.mark.slow
def test_a_trainer_of_ones_own_trains_in_a_kernel(tmp_path):
    source = OWN_TRAINER
    for written, small in SMALL.items():
        assert written in source
        source = source.replace(written, small)
    shown = texts(cell(f"{source}\nprint('updates:', trainer.global_step)"), tmp_path)
    assert shown.count("held out before training") == 1 and "updates: 4" in shown


@pytest.mark.slow
def test_the_notebook_that_ships_runs_in_a_kernel(tmp_path):
    notebook = nbformat.read(ROOT / "examples" / "quickstart.ipynb", as_version=4)
    assert "sampled by policy [" in texts(notebook, tmp_path)
