"""Long commands on a terminal of 80 columns: they say where they are, and nothing is wider."""

import os
import re

import pytest
from tests.commands import run_command, train

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-ln-z]|[\r\n]")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
TERMINAL = {"columns": 80, "env": {**os.environ, "TERM": "xterm"}}


def drawn(done):
    """All lines that were ever on the terminal, in order."""
    assert done.returncode == 0, done.stdout
    return [line.rstrip() for line in CONTROL.split(COLOUR.sub("", done.stdout)) if line.strip()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Lines of a run whose samples take a second."""
    folder = tmp_path_factory.mktemp("run") / "run"
    engine = "rollout.engine._target_=tests.runs.own_classes.SlowEngine"
    return drawn(train(f"run_folder={folder}", engine, "scale.num_rollout_batches=2", **TERMINAL))


def test_training_says_what_it_waits_for_and_for_how_long(trained):
    text = "\n".join(trained)
    assert "sampling 32" in text and "sampling 5/32" in text
    assert re.search(r"^sampling (5/)?32, 1 s$", text, re.MULTILINE)


def test_training_counts_updates_and_tells_the_time_left_on_lines_that_fit(trained):
    bars = [line for line in trained if re.match(r"update \d+/16 ━", line)]
    assert any(line.endswith(" s left") for line in bars)
    assert bars[0].startswith("update 0/16") and not any("Epoch" in line for line in trained)
    assert any(re.match(r"reward \d\.\d{3}  entropy", line) for line in trained)
    # A command is printed in one line, so that it can be copied.
    assert [line for line in trained if len(line) > 80 and "make view RUN=" not in line] == []
    first = next(number for number, line in enumerate(trained) if line.startswith("update     1/16  reward"))
    assert any(re.match(r" {17}[a-z ]+ \d", line) for line in trained[first:])  # broken between two numbers


def test_a_stock_bar_takes_the_place_of_ours(tmp_path):
    bar = "+callbacks.rich={_target_: lightning.pytorch.callbacks.RichProgressBar}"
    lines = drawn(train(f"run_folder={tmp_path / 'run'}", "regime=on_policy", bar, **TERMINAL))
    assert any("Epoch 0" in line for line in lines)
    assert not any(re.match(r"update \d+/1 ━", line) for line in lines)


@pytest.mark.slow
def test_without_a_progress_bar_nothing_is_drawn(tmp_path):
    quiet = ["regime=on_policy", "+trainer.enable_progress_bar=false"]
    done = train(f"run_folder={tmp_path / 'run'}", *quiet, **TERMINAL)
    assert "finished after 1 update" in "\n".join(drawn(done)) and "\x1b[?25l" not in done.stdout


@pytest.mark.slow
def test_a_sweep_has_a_row_for_each_run(tmp_path):
    options = ["-m", "experiment=additions", "debug=fast", "regime=on_policy", "algorithm=grpo,bapo"]
    options += [f"output_root={tmp_path}", "launcher.parallel_runs=2", "callbacks.validation.every=0"]
    # A run that ends between two looks at its folder is never seen running.
    options += ["rollout.engine._target_=tests.runs.own_classes.SlowEngine"]
    lines = drawn(run_command("bapo_lightning.cli.train", *options, forks=True, **TERMINAL))
    assert any(re.match(r"algorithm_grpo +running +0/1 +[\d:]*( s)?$", line) for line in lines)
    assert any(re.match(r"algorithm_bapo +finished +1/1 +\d\.\d{3} +[\d:]+( s)?$", line) for line in lines)
    assert any(line.startswith("runs 0/2 ━") for line in lines)
    assert not any(line.startswith("[1/2]") for line in lines)  # which stands in a pipe
