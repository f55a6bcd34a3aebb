"""Follows docs/add_a_baseline.md to the letter in a copy of the tree: writes its files, runs its commands."""

import csv
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

ROOT = Path(__file__).resolve().parents[1]
GUIDE = (ROOT / "docs" / "add_a_baseline.md").read_text()
# The last path named before a block, on the line that ends with a colon, is the block's file.
FILES = re.findall(
    r"`([\w./-]+\.(?:py|yaml))`[^`\n]*:\n\n```(?:python|yaml)\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL
)
COMMANDS = "".join(re.findall(r"^```sh\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)).splitlines()
RIVAL = [(name, text) for name, text in FILES if "power_mean" in name]
NEW = ("grpo", "grpo_wide", "power_mean")


def clone(tree, files):
    """Makes a clone with some files of the page; its `.venv` finds the clone first, and is newer than it."""
    for name in ("src", "conf", "scripts", "tests", "docs", "examples"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("Makefile", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, tree)
    before = {path.relative_to(tree).as_posix() for path in tree.rglob("*")}
    for name, text in files:
        assert name not in before, f"the page overwrites {name}"
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    python = tree / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{tree}/src:$PYTHONPATH" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    for mark in (".ready", ".ready-dev"):
        (tree / ".venv" / mark).touch()
    return tree


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return clone(tmp_path_factory.mktemp("clone"), FILES)


@pytest.fixture(scope="module")
def shown(tree):
    """Output of each command of the page, run one after the other in the copy."""
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "MAKEFLAGS")}
    environment["PYTEST_XDIST_AUTO_NUM_WORKERS"] = "1"  # for one test; each takes seconds to start
    printed = {}
    for command in COMMANDS:
        words = ["bash", "-c", command]
        done = subprocess.run(words, cwd=tree, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        printed[command] = done.stdout
    return printed


@pytest.mark.slow
@pytest.mark.drill
def test_a_rival_of_three_files_is_in_every_table_and_under_every_test(tmp_path):
    clone(tmp_path, RIVAL)
    found = (tmp_path / "docs").rglob("*")
    pages = {path: path.read_text() for path in found if path.suffix in (".md", ".csv")}
    files = " ".join(f"tests/{name}" for name in ("zoo", "test_losses.py", "test_leaves.py", "test_docs.py"))
    named = "power_mean or every_reference or presets or every_choice or (leaves and not without)"
    tests = f'{files} tests/configuration/test_extremes.py -m "not drill" -k "{named}"'
    command = f"make tables && .venv/bin/python -m pytest {tests}"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    written = {page.relative_to(tmp_path).as_posix() for page in pages if page.read_text() != pages[page]}
    assert written == {"docs/methods.md", "docs/results/presets.md", "docs/results/presets.csv"}
    assert all("power_mean" in (tmp_path / page).read_text() for page in written if "presets.md" not in page)


def runs(tree):
    """Run folders by algorithm."""
    return {
        yaml.safe_load(path.read_text())["algorithm"]["name"]: path.parent
        for path in tree.glob("outputs/*/*/config.yaml")
    }


def rows(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_the_page_has_the_files_that_a_baseline_takes():
    own = ("my_method.py", "conf/algorithm/brief_hard.yaml")
    wide, rival = "conf/algorithm/grpo_wide.yaml", [name for name, _ in RIVAL]
    assert [name for name, _ in FILES] == [wide, *rival, *(f"my_lab/{name}" for name in own)]
    folders = ("src/bapo_lightning/algorithms/", "conf/algorithm/", "tests/algorithms/test_")
    assert [name.partition("power_mean")[0] for name in rival] == list(folders)


@pytest.mark.slow
@pytest.mark.drill
def test_every_command_of_the_page_works(shown, tree):
    composed, tested, _, swept, compared = shown.values()
    assert yaml.safe_load(composed)["weighting"]["_target_"].endswith("sequence_mean")
    assert re.search(r"^\.\s", tested, re.MULTILINE), "one test, and it passes"
    assert all(f"algorithm={name}" in swept for name in NEW)
    assert "compare.html" in compared
    assert set(runs(tree)) == {*NEW, "brief_hard"}
    manifests = [json.loads((run / "manifest.json").read_text()) for run in runs(tree).values()]
    assert {manifest["status"] for manifest in manifests} == {"finished"}


@pytest.mark.slow
def test_a_rule_with_a_state_and_a_stage_take_less_than_60_lines_and_are_resumed(shown, tree):
    own = [text for name, text in FILES if name.endswith(("my_method.py", "brief_hard.yaml"))]
    assert len(own) == 2 and sum(text.count("\n") for text in own) < 60
    run = runs(tree)["brief_hard"]
    assert all(0.5 <= row["hard_first/weight"] <= 1 for row in rows(run) if "hard_first/weight" in row)
    newest = max(run.glob("checkpoints/update*"))
    data = torch.load(newest / "data.pt", weights_only=True)["data"]
    assert data["rules"]["brief"]["mean"] > 1


@pytest.mark.slow
def test_table_and_page_show_the_new_names(shown, tree):
    (numbers,) = tree.glob("outputs/sweep-*/compare.csv")
    assert {row["algorithm"] for row in csv.DictReader(numbers.open())} == set(NEW)
    (page,) = tree.glob("outputs/sweep-*/compare.html")
    assert all(name in page.read_text() for name in NEW)


@pytest.mark.slow
def test_the_runs_trained_with_the_new_formulas(shown, tree):
    """Losses and gradients of the first update and of a late one differ where they must.

    In the first update every ratio is 1: the mean of a response's is 1 as well, and loss and gradient are
    GRPO's. Responses that weigh the same make another mean. Later ratios differ from 1, and so do gradients.
    """
    grpo, wide, power_mean = (rows(runs(tree)[name]) for name in NEW)
    for name in ("train/loss", "train/grad_norm"):
        assert math.isclose(grpo[0][name], power_mean[0][name], rel_tol=1e-4)
    assert not math.isclose(grpo[0]["train/grad_norm"], wide[0]["train/grad_norm"], rel_tol=1e-2)
    last = max(number for number, row in enumerate(grpo) if row["train/grad_norm"])  # a group may be uniform
    assert not math.isclose(grpo[last]["train/grad_norm"], power_mean[last]["train/grad_norm"], rel_tol=1e-4)
    bounds = {(round(row["bapo/clip_low"], 4), round(row["bapo/clip_high"], 4)) for row in wide}
    assert bounds == {(0.8, 1.5)}
