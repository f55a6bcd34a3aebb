import json
from dataclasses import replace
from math import exp, log

import pytest
import torch
from safetensors.torch import load_file
from tests import commands
from tests.algorithms.by_hand import exact
from tests.algorithms.resuming import check_resumed_run
from tests.cli.evaluations import results_of, run
from tests.runs.test_runs_on_ranks import train_as_one_process_does
from tests.token_tables import table

from bapo_lightning.algorithms.flowrl import FlowRL
from bapo_lightning.library import BapoModule
from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.modules.policy.options import ModelOptions
from bapo_lightning.objectives.objective import needs_of
from bapo_lightning.tools.commands.export import main

TINY = model_path("package://bapo_lightning/tiny_worlds/additions/model")
SETTINGS = [
    "algorithm=flowrl", "model.packing=padding_free", "scale.micro_batch_tokens=300",
    "callbacks.validation.every=0", "callbacks.entropy_rule.every=0", "callbacks.checkpoint.every=8",
]  # fmt: skip


def two_responses(**changes):
    """One of two tokens, whose ratios multiply to 1.1, and one of a single token with a ratio of 3."""
    columns = {
        "behaviour_logp": exact(-1.0, -2.0 - log(1.1), -1.0 - log(3.0)), "logp": exact(-1.0, -2.0, -1.0),
        "reference_logp": exact(-2.0, -4.0, -0.5), "log_z": exact(0.25, 0.25, -1.0),
        "sequence": torch.tensor([0, 0, 1]), "low": 0.8, "high": 1.2,
    }  # fmt: skip
    return table(exact(0.1, 0.1, -0.2), **columns | changes)


def slopes(objective, made):
    """Gradients in log pi and in log Z of the sum over tokens."""
    leaves = (made.logp.clone().requires_grad_(), made["log_z"].clone().requires_grad_())
    traced = replace(made, logp=leaves[0]).with_columns({"log_z": leaves[1]})
    traced = traced.relative_to(made.proximal_logp)
    return [found.tolist() for found in torch.autograd.grad(objective(traced).sum(), leaves)]


def test_a_response_has_the_weighted_square_of_its_residual():
    # 0.25 - 1.5 - 1.5 + 3 = 0.25 at a weight of 1.1; -1 - 1 + 3 + 0.5 = 1.5 at one of 3, clipped to 1.2
    expected = [-1.1 * 0.0625, -1.1 * 0.0625, -1.2 * 2.25]
    assert FlowRL()(two_responses()).tolist() == pytest.approx(expected)


def test_the_published_code_does_not_clip_the_weight():
    assert FlowRL()(two_responses(low=0.0, high=1e9)).tolist()[2] == pytest.approx(-3.0 * 2.25)


def test_the_residual_pushes_log_pi_and_log_z_alike_and_the_weight_is_a_constant():
    of_logp, of_log_z = slopes(FlowRL(), two_responses())
    assert of_logp == pytest.approx([-1.1 * 0.5, -1.1 * 0.5, -1.2 * 3.0])
    assert of_log_z == pytest.approx([-1.1 * 0.5, -1.1 * 0.5, -1.2 * 3.0])


def test_answers_without_an_advantage_are_held_to_the_reference():
    made = two_responses(log_z=0.0)
    of_logp, _ = slopes(FlowRL(), replace(made, advantage=torch.zeros_like(made.advantage)))
    # mean log pi - mean log pi_ref is 1.5 for the first response and -0.5 for the second
    assert of_logp == pytest.approx([-1.1 * 3.0, -1.1 * 3.0, 1.2 * 1.0])


def test_it_is_largest_where_pi_is_the_reference_times_the_reward_over_z():
    advantage, log_z = exact(0.3, -0.1), exact(0.7, 0.7)
    reference = exact(-8.0, -9.0)
    made = table(advantage, logp=reference + 2 * advantage - log_z, reference_logp=reference, log_z=log_z)
    assert FlowRL(beta=2.0)(made.with_bounds(exact(0.0), exact(1e9))).tolist() == pytest.approx([0.0, 0.0])


def test_a_response_that_is_far_out_keeps_a_finite_objective():
    made = two_responses(behaviour_logp=exact(-500.0, -500.0, -1.0))
    found = FlowRL()(made)
    assert found.isfinite().all() and FlowRL()(two_responses()).isfinite().all()
    long = table(torch.ones(200), exp(20.0), reference_logp=-1.0, log_z=0.0, sequence=0, low=0.8, high=1.2)
    assert FlowRL()(long).isfinite().all(), "exp(4000) is infinite, its bound is not"


def test_it_needs_a_reference_and_an_estimate_of_log_z():
    assert needs_of(FlowRL) == needs_of(FlowRL()) == {"reference_logp", "log_z"}


def train(folder, batches, *overrides):
    return commands.train_to_end(folder, batches, *SETTINGS, *overrides)


def state(folder, update):
    file = folder / f"checkpoints/update{update:06d}/trainer.ckpt"
    return torch.load(file, weights_only=True)["state_dict"]


def scored(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["step"] for row in rows if "time/reference_seconds" in row]


@pytest.mark.slow
def test_the_head_is_trained_and_the_exported_model_has_none(tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "out"
    train(whole, 2)
    saved = state(whole, 16)
    assert scored(whole) == [0, 8], "once for each rollout batch"
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
def test_with_adapters_the_head_is_trained_with_them(tmp_path):
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
