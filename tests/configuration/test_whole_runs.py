"""Whole runs and commands with changes of `make fuzz` end without traceback, and it would see one."""

import os
import signal
import time
from pathlib import Path

import pytest
from tests.commands import run_command
from tests.configuration.attempts import HANG, KILLED, RAN, REFUSED, SILENT, STOPPED, TRACEBACK, attempt

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("of", "count", "seed"), [
    ("training", 36, 0),
    ("commands", 8, 31),
    pytest.param("training", 120, 1, marks=(pytest.mark.slow, pytest.mark.drill)),
    pytest.param("commands", 60, 15, marks=(pytest.mark.slow, pytest.mark.drill)),
])  # fmt: skip
def test_no_change_of_an_option_ends_in_a_traceback_or_hangs(of, count, seed, tmp_path):
    options = "--of", of, "--sample", count, "--seed", seed, "--results", tmp_path / "fuzz.jsonl"
    done = run_command("tests.configuration.fuzz", *options, cwd=ROOT, timeout=900)
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith(f"{count} changes: "), done.stdout


def in_words():
    print("error: no such option")
    return 1


def in_words_later():
    Path("metrics.jsonl").touch()
    return in_words()


@pytest.mark.parametrize(("work", "ended"), [
    (lambda: 0, RAN),
    (lambda: 1, SILENT),
    (in_words, REFUSED),
    (in_words_later, STOPPED),
    (lambda: 1 / 0, TRACEBACK),
    (lambda: time.sleep(60), HANG),
    (lambda: os.kill(os.getpid(), signal.SIGKILL), KILLED),
])  # fmt: skip
def test_every_end_of_a_run_is_distinguished_from_the_others(work, ended, tmp_path):
    assert attempt(work, tmp_path / "run", seconds=1).ended == ended
