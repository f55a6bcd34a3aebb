"""FlowRL in a whole run: what is saved, exported, evaluated and taken up again."""

import json

import pytest
import torch
from safetensors.torch import load_file
from tests import commands
from tests.algorithms.resuming import check_resumed_run
from tests.cli.evaluations import results_of, run
from tests.runs.test_runs_on_ranks import train_as_one_process_does

from bapo_lightning.cli.export import main
from bapo_lightning.library import BapoModule
from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.modules.policy.options import ModelOptions

TINY = model_path("package://bapo_lightning/tiny_worlds/additions/model")
SETTINGS = [
    "algorithm=flowrl",
    "model.packing=padding_free",
    "scale.micro_batch_tokens=300",
    "callbacks.validation.every=0",
    "callbacks.entropy_rule.every=0",
    "callbacks.checkpoint.every=8",
]


def train(folder, batches, *overrides):
    return commands.train_to_end(folder, batches, *SETTINGS, *overrides)


def state(folder, update):
    file = folder / f"checkpoints/update{update:06d}/trainer.ckpt"
    return torch.load(file, weights_only=True)["state_dict"]


def scored(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["step"] for row in rows if "time/reference_seconds" in row]


@pytest.mark.slow
def test_the_head_is_trained_and_resumed_and_the_exported_model_has_none(tmp_path):
    whole, parted, out = tmp_path / "whole", tmp_path / "parted", tmp_path / "out"
    train(whole, 2)
    train(parted, 1)
    assert "resumed" in train(parted, 2, f"resume={parted}")
    saved = state(whole, 16)
    assert all(torch.equal(weight, saved[name]) for name, weight in state(parted, 16).items())
    assert scored(parted) == scored(whole) == [0, 8], "once for each rollout batch"
    first = build_policy(ModelOptions(TINY), 1.0, log_z=True).log_z.state_dict()
    head = {name: saved.pop(f"policy.log_z.{name}") for name in first}
    assert not any(torch.equal(weight, first[name]) for name, weight in head.items())
    assert main([str(whole), str(out)]) == 0
    exported = load_file(out / "model.safetensors")
    assert {f"policy.model.{name}" for name in exported} == set(saved) - {"policy.model.lm_head.weight"}
    assert all(torch.equal(weight, saved[f"policy.model.{name}"]) for name, weight in exported.items())
    again = BapoModule.load_from_checkpoint(whole).policy
    assert all(torch.equal(weight, head[name]) for name, weight in again.log_z.state_dict().items())
    run(f"checkpoint={whole}", "problems_per_set=4", "k=1", f"run_folder={tmp_path / 'evaluation'}")
    assert 0 <= results_of(tmp_path / "evaluation", "avg@1") <= 1


@pytest.mark.slow
def test_with_adapters_the_head_is_trained_beside_them(tmp_path):
    folder, out = tmp_path / "run", tmp_path / "out"
    lora = ("model/lora=default", "model.lora.rank=4")
    train(folder, 1, *lora)
    saved = state(folder, 8)
    assert {".lora_" in name or name.startswith("policy.log_z.") for name in saved} == {True}
    assert "policy.log_z.layers.0.weight" in saved and scored(folder) == [0]
    assert "resumed" in train(folder, 2, f"resume={folder}", *lora)
    assert main([str(folder), str(out)]) == 0
    assert not any("log_z" in name for name in load_file(out / "model.safetensors"))


@pytest.mark.slow
def test_the_reference_policy_and_the_head_are_sharded(monkeypatch, capsys):
    train_as_one_process_does("algorithm=flowrl", ["fsdp 2 -> single"], monkeypatch, capsys)


@pytest.mark.slow
def test_a_run_with_reuse_goes_on_as_if_it_had_never_stopped(tmp_path):
    check_resumed_run(tmp_path, '"origin": "replayed"', "algorithm=flowrl", "regime=reuse")
