"""The update itself: what bounds, loss and gradients may and may not depend on."""

import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import lightning as L
import pytest
import torch
from tests.builders import adaptive, budget_for, gradients, module, random_policy, stale_batch, step
from torch.utils.data import DataLoader

from bapo_lightning.modules.bound_rules import FixedBounds
from bapo_lightning.objectives.objective import clip
from bapo_lightning.objectives.token_table import concatenate
from bapo_lightning.objectives.weighting import fixed_length, sequence_mean, token_mean
from bapo_lightning.system.errors import StaleDataError, TrainingError


@pytest.mark.parametrize("weighting", [token_mean, sequence_mean, partial(fixed_length, length=20)])
def test_bounds_loss_and_gradients_do_not_depend_on_the_number_of_micro_batches(weighting):
    batch = stale_batch(random_policy(), num_groups=8)
    rule, budgets = adaptive(target=0.55), (budget_for(batch, parts) for parts in (1, 2, 5))
    (whole, whole_gradient), *others = (
        step(random_policy(), rule, batch, micro_batch_tokens=each, weighting=weighting) for each in budgets
    )
    search = whole["bounds"][0]
    low, high = float(search.low), float(search.high)
    assert 1.2 < high < 3.0 or 0.6 < low < 0.9, "the case must not sit at an end of the path"
    for outputs, gradient in others:
        assert len(outputs["bounds"]) == 1
        assert outputs["bounds"][0].low == search.low and outputs["bounds"][0].high == search.high
        assert float(outputs["loss"]) == pytest.approx(float(whole["loss"]), rel=1e-5)
        assert (gradient - whole_gradient).norm() / whole_gradient.norm() < 1e-5


def test_fixed_bounds_are_ppo_clip_to_the_bit():
    batch = stale_batch(random_policy())
    policy = random_policy()
    outputs, gradient = step(policy, FixedBounds(0.8, 1.2), batch)
    policy.zero_grad()
    (micro_batch,) = batch.split(10**6, batch.response_mask.float() / batch.num_tokens)
    logp, _ = policy(micro_batch)
    ratio = (logp - micro_batch.behaviour_logp).exp()
    surrogate = torch.minimum(ratio * micro_batch.advantage, ratio.clamp(0.8, 1.2) * micro_batch.advantage)
    loss = -(micro_batch.weight * surrogate).sum()
    loss.backward()
    assert torch.equal(outputs["loss"], loss.detach())
    assert torch.equal(gradient, gradients(policy))


def test_a_search_whose_range_is_a_point_equals_fixed_bounds():
    batch = stale_batch(random_policy())
    low, high = ({"start": bound, "end": bound, "step": 0.1} for bound in (0.8, 1.2))
    point = adaptive(low=low, high=high)
    _, searched = step(random_policy(), point, batch)
    _, fixed = step(random_policy(), FixedBounds(0.8, 1.2), batch)
    assert torch.equal(searched, fixed)


def count_forwards(policy):
    calls = []
    policy.register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    return calls


def test_one_micro_batch_is_scored_once_and_several_are_scored_first_only_when_the_rule_searches():
    batch = stale_batch(random_policy())
    two = budget_for(batch, 2)
    for rule, budget, expected in [
        (adaptive(), 10**6, [True]),
        (adaptive(), two, [False, False, True, True]),
        (FixedBounds(0.8, 1.2), two, [True, True]),
        (adaptive(scope="microbatch"), two, [True, True]),
    ]:
        policy = random_policy()
        calls = count_forwards(policy)
        step(policy, rule, batch, micro_batch_tokens=budget)
        assert calls == expected


def test_micro_batches_with_a_search_of_their_own_have_positive_and_negative_tokens():
    batch = stale_batch(random_policy(), num_groups=8)
    lengths = torch.tensor(batch.response_lengths)
    by_length = replace(batch, advantage=torch.where(lengths > lengths.float().median(), -1.0, 1.0))
    shares = {}
    for scope in ("minibatch", "microbatch"):
        owner = module(random_policy(), adaptive(scope=scope), micro_batch_tokens=budget_for(batch, 5))
        micro_batches, _ = owner.micro_batches(by_length)
        shares[scope] = [(part.advantage > 0).float().mean().item() for part in micro_batches]
    assert min(shares["minibatch"]) == 0 and max(shares["minibatch"]) == 1
    assert min(shares["microbatch"]) > 0.1 and max(shares["microbatch"]) < 0.6


def test_slopes_know_the_dual_clip_and_the_bounds_of_each_micro_batch():
    batch = stale_batch(random_policy(), noise=1.0)
    policy = random_policy()
    rule = adaptive(scope="microbatch", target=0.6)
    budget = budget_for(batch, 5)
    dual_clipped = partial(clip, dual_clip=2.0)
    outputs, _ = step(policy, rule, batch, micro_batch_tokens=budget, objective=dual_clipped)
    table, searches = outputs["tokens"], outputs["bounds"]
    parts, _ = module(policy, rule, micro_batch_tokens=budget).micro_batches(batch)
    assert len(searches) == len(parts) >= 5
    sizes = torch.tensor([len(part.advantage) for part in parts])
    whole = [torch.stack(bounds).repeat_interleave(sizes) for bounds in zip(*searches, strict=True)]
    low, high = whole[:2]
    negative = table.advantage < 0
    cut = (~negative & (table.ratio > high)) | (negative & ((table.ratio < low) | (table.ratio > 2)))
    assert torch.equal(table.slope, table.advantage.where(~cut, 0.0))
    assert (negative & (table.ratio > 2)).any() and len(set(high.tolist())) > 1


@pytest.mark.parametrize("sign", [1.0, -1.0, 0.0])
def test_one_sided_and_empty_advantages_give_finite_losses(sign):
    batch = stale_batch(random_policy())
    signed = replace(batch, advantage=batch.advantage.abs() * sign)
    outputs, gradient = step(random_policy(), adaptive(), signed)
    assert math.isfinite(float(outputs["loss"])) and gradient.isfinite().all()
    assert bool(outputs["bounds"][0].met) == (sign >= 0)


def test_too_old_data_stops_the_step():
    batch = stale_batch(random_policy(), version=0)
    with pytest.raises(StaleDataError):
        step(random_policy(), FixedBounds(0.8, 1.2), batch, max_age=2)


def test_outputs_hold_a_detached_row_per_token():
    batch = stale_batch(random_policy())
    outputs, _ = step(random_policy(), adaptive(), batch, micro_batch_tokens=budget_for(batch, 5))
    assert len(outputs["tokens"].logp) == batch.num_tokens and not outputs["tokens"].logp.requires_grad
    assert concatenate([outputs["tokens"]], ["logp"])["logp"] is outputs["tokens"].logp


class Poison(L.Callback):
    """Makes the gradient of chosen updates infinite."""

    def __init__(self, updates):
        self.updates = updates
        self.count = -1

    def on_after_backward(self, trainer, pl_module):
        self.count += 1
        if self.count in self.updates:
            next(pl_module.policy.parameters()).grad.fill_(float("inf"))


def fit(policy, poisoned, num_updates=5, bounds=None, callbacks=(), **changes):
    made = module(policy, bounds or FixedBounds(0.8, 1.2), **changes)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=1, logger=False, callbacks=[Poison(poisoned), *callbacks],
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    batches = [stale_batch(random_policy())] * num_updates
    trainer.fit(made, DataLoader(batches, batch_size=None))
    return made, trainer


def test_a_non_finite_gradient_is_skipped_counted_and_does_not_advance_the_version():
    policy = random_policy()
    made, trainer = fit(policy, poisoned={1, 3})
    assert made.num_skipped_updates == 2 and trainer.global_step == 3
    assert all(parameter.isfinite().all() for parameter in policy.parameters())


def test_too_many_non_finite_gradients_in_a_row_end_the_run():
    with pytest.raises(TrainingError, match="not finite in 3 updates in a row"):
        fit(random_policy(), poisoned={1, 2, 3})
    fit(random_policy(), poisoned={0, 1, 3, 4})


def test_a_checkpoint_holds_what_the_module_counts():
    one, other = (module(random_policy(), FixedBounds(0.8, 1.2)) for _ in range(2))
    one.num_skipped_updates, one._nonfinite_in_a_row, one.last_learning_rate = 3, 1, 1e-4
    outputs, _ = step(random_policy(), FixedBounds(0.8, 1.2), stale_batch(random_policy()))
    one._fabric, one._trainer = None, SimpleNamespace(callbacks=[])
    one.gathered([outputs["tokens"]])
    assert one.last_entropy == pytest.approx(float(outputs["tokens"].entropy.mean()))
    checkpoint = {}
    one.on_save_checkpoint(checkpoint)
    other.on_load_checkpoint(checkpoint)
    assert (other.num_skipped_updates, other._nonfinite_in_a_row, other.last_learning_rate) == (3, 1, 1e-4)
    assert other.last_entropy == one.last_entropy
