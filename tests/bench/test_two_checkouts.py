"""Runs of two checkouts beside each other."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import run_comparison
from tests.commands import run_command
from two_checkouts import differing_metrics, main

ROOT = Path(__file__).resolve().parents[2]


def test_the_first_update_that_differs_is_named_with_its_metrics():
    other = [{"step": 0, "loss": 1.0, "time/step_seconds": 1.0}, {"step": 1, "loss": 1.0, "entropy": 2.0}]
    this = [{"step": 0, "loss": 1.0, "time/step_seconds": 2.0, "new": 3.0}, {"step": 1, "loss": 1.5}]
    assert differing_metrics(other[:1], this[:1]) == ""
    assert differing_metrics(other, this) == "update 1 differs in loss"


def forked(command, cwd, env, **captured):
    """Runs the training of a checkout, whose package must come first."""
    _, option, module, *arguments = command
    assert option == "-m" and env["PYTHONPATH"] == str(cwd / "src")
    return run_command(module, *arguments, cwd=cwd, env=env)


@pytest.mark.slow
def test_a_checkout_compared_to_itself_is_equal_to_the_bit(tmp_path, monkeypatch, capsys):
    record = tmp_path / "record.json"
    outputs = {"PIPE": subprocess.PIPE, "STDOUT": subprocess.STDOUT}
    monkeypatch.setattr(run_comparison, "subprocess", SimpleNamespace(run=forked, **outputs))
    sizes = ["--set", "debug=fast", "scale.num_rollout_batches=2", "callbacks.validation.every=0"]
    command = ["two_checkouts.py", str(ROOT), "--pairs", "1", "--json", str(record), *sizes]
    monkeypatch.setattr(sys, "argv", command)
    main()
    printed = capsys.readouterr().out
    assert "metrics, end weights and ledger are equal to the bit" in printed
    assert "median of 1 pairs" in printed
    assert json.loads(record.read_text())["ratio"]["count"] == 1
