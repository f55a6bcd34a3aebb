"""Every example runs as its first line says, in an empty folder."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.commands import run_command

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SHOWN = {
    "minimal": "reward 0.",
    "lightning_trainer": "val/additions/avg@4",
    "fabric_objectives": "bounds [",
    "own_reward_and_data": "policy [",
}

# Run by `make check-others`, in environments that have TRL and verl.
ELSEWHERE = {"trl_grpo_trainer": "check_trl", "verl_policy_loss": "check_verl"}


def run(file, folder):
    done = run_command(file, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_in_a_new_process(file, folder):
    return subprocess.run(
        [sys.executable, file], cwd=folder, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_the_example_runs(name, tmp_path):
    file = EXAMPLES / f"{name}.py"
    assert f"`python examples/{name}.py`" in file.read_text()
    start = run_in_a_new_process if name == "minimal" else run
    assert SHOWN[name] in start(file, tmp_path)


def test_every_example_is_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*SHOWN, *ELSEWHERE}
    recipe = (EXAMPLES.parent / "Makefile").read_text().partition("\ncheck-others:")[2].partition("\n\n")[0]
    for example, check in ELSEWHERE.items():
        assert f"tests/others/{check}.py" in recipe
        assert example in (EXAMPLES.parent / f"tests/others/{check}.py").read_text()
    assert [path.name for path in EXAMPLES.glob("*.ipynb")] == ["quickstart.ipynb"]


@pytest.mark.slow
def test_the_cells_of_the_notebook_run_one_after_another(tmp_path):
    cells = json.loads((EXAMPLES / "quickstart.ipynb").read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    script = tmp_path / "cells.py"
    script.write_text("\n".join(["import matplotlib", "matplotlib.use('agg')", *sources]))
    assert "sampled by policy [" in run(script, tmp_path)


def test_the_notebook_is_shipped_without_outputs():
    cells = json.loads((EXAMPLES / "quickstart.ipynb").read_text())["cells"]
    assert not any(cell.get("outputs") for cell in cells)
