"""LoRA in a whole run on the tiny world: what is trained, saved, synced and taken up again."""

import json

import pytest
import torch
from tests import commands

from bapo_lightning.cli.export import main
from bapo_lightning.modules.export import model_folder

SETTINGS = [
    "model/lora=default",
    "model.lora.rank=4",
    "model.packing=padding_free",
    "model.activation_checkpointing=true",
    "scale.micro_batch_tokens=300",
    "callbacks.validation.every=0",
    "callbacks.checkpoint.every=8",
]


def train(folder, batches, *overrides):
    return commands.train_to_end(folder, batches, *SETTINGS, *overrides)


def rows(folder):
    parsed = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: value for name, value in row.items() if "second" not in name and not name.startswith("val/")}
        for row in parsed
    ]


def weights(folder, update):
    return torch.load(folder / f"checkpoints/update{update:06d}/trainer.ckpt", weights_only=True)[
        "state_dict"
    ]


@pytest.mark.slow
def test_a_run_trains_adapters_alone_and_goes_on_from_them_to_the_bit(tmp_path, monkeypatch, capsys):
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    train(whole, 2)
    train(parted, 1)
    assert "resumed" in train(parted, 2, f"resume={parted}")
    assert rows(parted) == rows(whole) and len(rows(whole)) == 16
    assert all(
        row["mismatch/abs_logp_diff_mean"] < 1e-4
        for row in rows(whole)
        if "mismatch/abs_logp_diff_mean" in row
    )
    trained = weights(whole, 16)
    assert trained and all(".lora_" in name for name in trained)
    assert any(float(weight.abs().max()) > 0 for name, weight in trained.items() if ".lora_B." in name)
    for name, weight in weights(parted, 16).items():
        assert torch.equal(weight, trained[name]), name
    arguments = [str(whole), str(tmp_path / "out"), "--overwrite"]
    assert main([*arguments, "--dtype", "float32"]) == 0 and "warning" not in capsys.readouterr().out
    monkeypatch.setattr(model_folder, "KEPT", 2.0)
    assert main([*arguments, "--dtype", "bfloat16"]) == 0
    assert "warning: merged weights in bfloat16 hold " in capsys.readouterr().out
