"""docs/tutorial.md in an empty folder: its notebook runs every command and file of the page."""

import csv
import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from scripts import tutorial

from bapo_lightning.system.run_folder.record import read_rows

TRAIN = "python -m bapo_lightning train"
SEEDS = "seed=0,1 folder=sweep-algorithm-seed"  # the folder that the page names, whatever else is set


def test_the_notebook_is_the_page():
    assert tutorial.NOTEBOOK.read_text() == tutorial.notebook(), "make tables writes it again"


def test_every_block_of_the_page_is_a_cell():
    """Apart from the console's line, which is shown as text."""
    cells = nbformat.reads(tutorial.notebook(), as_version=4).cells
    code = [cell.source.partition("\n")[2] for cell in cells if cell.cell_type == "code"]
    page = tutorial.PAGE.read_text()
    assert page.count("```") == 2 * len(code) + 2 and all(f"\n{block}\n```\n" in page for block in code)


@pytest.mark.slow
@pytest.mark.drill
def test_every_cell_runs_in_small_and_every_step_has_its_run_and_its_page(tmp_path, monkeypatch):
    notebook = nbformat.reads(tutorial.notebook(), as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.source = cell.source.replace(TRAIN, f"{TRAIN} debug=fast").replace("seed=0,1,2", SEEDS)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    runs = [path.parent for path in sorted(tmp_path.glob("outputs/*/*/metrics.jsonl"))]
    names = [run.parent.name for run in runs]
    assert names == ["additions"] * 2 + ["quickstart", "sums"] + ["sweep-algorithm-seed"] * 4
    assert all(list(read_rows(run)) for run in runs)
    assert list(tmp_path.glob("outputs/quickstart/*/view.html"))
    assert (tmp_path / "outputs/sweep-algorithm-seed/compare.html").is_file()
    with (tmp_path / "outputs/sweep-algorithm-seed/compare.csv").open() as file:
        assert {row["algorithm"] for row in csv.DictReader(file)} == {"bapo", "fading"}
