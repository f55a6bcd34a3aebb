"""Losses for the trainers of others: bounds and gradients are those of this package."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bapo_lightning.errors import ConfigError
from bapo_lightning.losses import policy_loss
from bapo_lightning.reference import Settings, search

ROOT = Path(__file__).resolve().parents[1]
ALGORITHMS = sorted({path.stem for path in (ROOT / "conf/algorithm").glob("*.yaml")} - {"base"})


def update(seed=0, rows=8, length=6, shift=0.3):
    generator = torch.Generator().manual_seed(seed)
    behaviour = -2 * torch.rand(rows, length, generator=generator)
    logp = behaviour + shift * torch.randn(rows, length, generator=generator)
    mask = torch.rand(rows, length, generator=generator) < 0.8
    advantages = torch.randn(rows, generator=generator)
    return {"logp": logp, "behaviour_logp": behaviour, "advantages": advantages, "mask": mask}


def known(rows=8, length=6):
    return {"entropy": torch.rand(rows, length), "group": torch.arange(rows) // 4}


def reference_bounds(parts, target=0.4):
    """Bounds of our one-file Algorithm 1 for the tokens of an update."""
    tables = []
    for part in parts:
        kept = part["mask"].bool()
        logp, old = (part[name].detach()[kept] for name in ("logp", "behaviour_logp"))
        advantage = part["advantages"].reshape(len(kept), -1).expand(kept.shape)[kept]
        num_tokens = sum(each["mask"].sum() for each in parts)
        weight = torch.full_like(logp, 1 / float(num_tokens))
        tables.append(
            SimpleNamespace(ratio=(logp - old).exp(), advantage=advantage, weight=weight, behaviour_logp=old)
        )
    found = search(Settings(target=target), tables)
    return float(found.low), float(found.high)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_is_a_loss_or_says_why_it_is_none(name):
    given = update()
    given["logp"].requires_grad_()
    try:
        loss, numbers = policy_loss(name)(**given, **known())
    except ConfigError as error:
        assert any(
            words in str(error)
            for words in ("is more than a loss", "which only our policy", "pass ", "give one")
        )
        return
    loss.backward()
    assert loss.isfinite() and given["logp"].grad.isfinite().all()
    assert {"clip_low", "clip_high", "clip_fraction"} <= numbers.keys()


@pytest.mark.parametrize("name", ["bapo", "dapo", "gspo", "p3o", "cispo"])
def test_micro_batches_have_the_bounds_and_the_gradient_of_their_update(name):
    given, made = update(rows=9), policy_loss(name)
    given["logp"].requires_grad_()
    whole, numbers = made(**given, **known(9))
    (expected,) = torch.autograd.grad(whole, given["logp"])
    rows = [slice(0, 2), slice(2, 3), slice(3, 9)]
    every = given | known(9)
    parts = [{key: values[own] for key, values in every.items()} for own in rows]
    losses = [made(**part, shared=shared) for part, shared in zip(parts, made.look_ahead(parts), strict=True)]
    total = sum(loss for loss, _ in losses)
    (found,) = torch.autograd.grad(total, given["logp"])
    torch.testing.assert_close(total, whole)
    torch.testing.assert_close(found, expected)
    assert all(own["clip_low"] == numbers["clip_low"] for _, own in losses)


@pytest.mark.parametrize("seed", range(8))
def test_bounds_are_those_of_the_reference(seed):
    given = update(seed, rows=32, length=16, shift=0.6)
    _, numbers = policy_loss("bapo")(**given)
    assert (float(numbers["clip_low"]), float(numbers["clip_high"])) == reference_bounds([given])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"advantages": torch.zeros(3)}, "advantages must have the shape"),
        ({"entropi": torch.zeros(8, 6)}, "entropi is no column of a policy loss"),
    ],
)
def test_what_does_not_fit_is_named(change, words):
    with pytest.raises(ValueError, match=words):
        policy_loss("bapo")(**update() | change)


def test_an_unknown_algorithm_is_refused():
    with pytest.raises(ConfigError, match="algorithm=bappo is no choice"):
        policy_loss("bappo")


@pytest.mark.slow
def test_trl_trains_twenty_updates_within_the_bounds_of_the_reference(monkeypatch, tmp_path):
    spec = importlib.util.spec_from_file_location("trl_example", ROOT / "examples/trl_grpo_trainer.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    updates, used = [], []

    class Recorded(example.PolicyLossTrainer):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            look_ahead = self.policy_loss.look_ahead

            def recorded(parts):
                updates.append([{name: values.detach() for name, values in part.items()} for part in parts])
                shared = look_ahead(parts)
                used.append((float(shared[0].bounds.low), float(shared[0].bounds.high)))
                return shared

            self.policy_loss.look_ahead = recorded

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(example, "PolicyLossTrainer", Recorded)
    monkeypatch.setattr(
        example, "policy_loss", lambda name: policy_loss(name, "algorithm.positive_share_target=0.12")
    )
    made = example.GRPOConfig
    monkeypatch.setattr(example, "GRPOConfig", lambda **options: made(**options | {"max_steps": 20}))
    example.main()
    assert len(updates) == 20 and all(len(parts) == 2 for parts in updates)
    assert used == [reference_bounds(parts, 0.12) for parts in updates]
    assert len(set(used)) > 2
