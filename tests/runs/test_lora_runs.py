"""LoRA and mixed precision in whole runs: what is trained, saved, synced and taken up again."""

import pytest
import torch
from safetensors.torch import load_file
from tests.commands import train_to_end
from tests.runs.written import rows, same, weights

from bapo_lightning.tools.commands.export import main
from bapo_lightning.tools.export import model_folder

RARE = ["callbacks.validation.every=0", "callbacks.checkpoint.every=8"]
LORA = [
    *("model/lora=default", "model.lora.rank=4", "model.packing=padding_free"),
    *("model.activation_checkpointing=true", "scale.micro_batch_tokens=300"),
]
MIXED = ["trainer.precision=bf16-mixed"]


def goes_on_to_the_bit(tmp_path, *settings):
    """Returns the folder of the uninterrupted run, and what it printed."""
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    printed = train_to_end(whole, 2, *RARE, *settings)
    train_to_end(parted, 1, *RARE, *settings)
    assert "resumed" in train_to_end(parted, 2, *RARE, *settings, f"resume={parted}")
    assert rows(parted) == rows(whole) and len(rows(whole)) == 16
    assert same(weights(parted, 16), weights(whole, 16))
    return whole, printed


@pytest.mark.slow
def test_a_run_trains_adapters_alone_and_goes_on_from_them_to_the_bit(tmp_path, monkeypatch, capsys):
    whole, _ = goes_on_to_the_bit(tmp_path, *LORA)
    assert all(row.get("mismatch/abs_logp_diff_mean", 0) < 1e-4 for row in rows(whole))
    trained = weights(whole, 16)
    assert trained and all(".lora_" in name for name in trained)
    assert any(float(weight.abs().max()) > 0 for name, weight in trained.items() if ".lora_B." in name)
    capsys.readouterr()
    arguments = [str(whole), str(tmp_path / "out"), "--overwrite"]
    assert main([*arguments, "--dtype", "float32"]) == 0 and "warning" not in capsys.readouterr().out
    monkeypatch.setattr(model_folder, "KEPT", 2.0)
    assert main([*arguments, "--dtype", "bfloat16"]) == 0
    assert "warning: merged weights in bfloat16 hold " in capsys.readouterr().out
    exported = load_file(tmp_path / "out" / "model.safetensors").values()
    assert {weight.dtype for weight in exported} == {torch.bfloat16}


@pytest.mark.slow
def test_a_run_in_mixed_precision_goes_on_to_the_bit(tmp_path):
    whole, printed = goes_on_to_the_bit(tmp_path, *MIXED)
    assert ", bf16-mixed (trainer.precision=32-true: float32) ->" in printed
    assert {weight.dtype for weight in weights(whole, 16).values()} == {torch.float32}


@pytest.mark.slow
def test_ranks_compute_in_mixed_precision(tmp_path):
    overrides = "strategy=fsdp", "trainer.devices=2"
    assert "bf16-mixed" in train_to_end(tmp_path / "run", 1, *RARE, *MIXED, *overrides)
    found = rows(tmp_path / "run")
    assert len(found) == 8 and not found[-1]["train/skipped_updates"]
    assert 0 < found[0]["mismatch/abs_logp_diff_mean"] < 0.1  # rounding, which an update adds to
