"""Runs of two checkouts beside each other."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from two_checkouts import difference

ROOT = Path(__file__).resolve().parents[2]


def test_the_first_update_that_differs_is_named_with_its_metrics():
    other = [{"step": 0, "loss": 1.0, "time/step_seconds": 1.0}, {"step": 1, "loss": 1.0, "entropy": 2.0}]
    this = [{"step": 0, "loss": 1.0, "time/step_seconds": 2.0, "new": 3.0}, {"step": 1, "loss": 1.5}]
    assert difference(other[:1], this[:1]) == "all metrics are equal to the bit"
    assert difference(other, this) == "update 1 differs in loss"


@pytest.mark.slow
def test_a_checkout_beside_itself_is_equal_to_the_bit(tmp_path):
    record = tmp_path / "record.json"
    script = str(ROOT / "bench" / "two_checkouts.py")
    sizes = ["--set", "scale.num_rollout_batches=2", "callbacks.validation.every=0"]
    command = [sys.executable, script, str(ROOT), "--pairs", "1", "--json", str(record), *sizes]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "all metrics are equal to the bit" in done.stdout and "median of 1 pairs" in done.stdout
    assert json.loads(record.read_text())["ratio"]["count"] == 1
