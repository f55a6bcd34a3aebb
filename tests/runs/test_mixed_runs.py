"""Whole runs on the tiny world in mixed precision."""

import json

import pytest
import torch
from tests import commands

from bapo_lightning.host import missing_to_build

SETTINGS = ["trainer.precision=bf16-mixed", "callbacks.validation.every=0", "callbacks.checkpoint.every=8"]
TIMES = ("second", "per_s")


def rows(folder):
    parsed = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: value for name, value in row.items() if not any(part in name for part in TIMES)}
        for row in parsed
    ]


@pytest.mark.slow
def test_a_run_in_mixed_precision_goes_on_to_the_bit(tmp_path):
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    assert ", bf16-mixed (trainer.precision=32-true: float32) ->" in commands.train_to_end(
        whole, 2, *SETTINGS
    )
    commands.train_to_end(parted, 1, *SETTINGS)
    assert "resumed" in commands.train_to_end(parted, 2, *SETTINGS, f"resume={parted}")
    assert rows(parted) == rows(whole) and len(rows(whole)) == 16
    first, second = (
        torch.load(folder / "checkpoints/update000016/trainer.ckpt", weights_only=True)["state_dict"]
        for folder in (whole, parted)
    )
    assert {weight.dtype for weight in first.values()} == {torch.float32}
    assert all(torch.equal(weight, second[name]) for name, weight in first.items())


@pytest.mark.slow
def test_ranks_compute_in_mixed_precision_with_compiled_layers(tmp_path):
    compiled = missing_to_build("C++") is None
    overrides = ["strategy=fsdp", "trainer.devices=2", f"model.compile={str(compiled).lower()}"]
    assert "bf16-mixed" in commands.train_to_end(tmp_path / "run", 1, *SETTINGS, *overrides)
    found = rows(tmp_path / "run")
    assert len(found) == 8 and not found[-1]["train/skipped_updates"]
    assert 0 < found[0]["mismatch/abs_logp_diff_mean"] < 0.1  # rounding, which an update adds to
