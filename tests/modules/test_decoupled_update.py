"""Decoupled PPO: what the recomputed log-probs and the correction do to ratio, loss, bounds and gradient."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from tests import builders
from tests.builders import adaptive, budget_for, gradients, module, random_policy, stale_batch, step
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR

from bapo_lightning.data.batches.batch import collate
from bapo_lightning.modules.bound_rules import FixedBounds
from bapo_lightning.modules.schedules import linear_warmup, step_scaled
from bapo_lightning.objectives.corrections.proximal import log_linear
from bapo_lightning.objectives.corrections.responses import carm, sequence_masked, sequence_truncated_is
from bapo_lightning.objectives.corrections.step_size import ess_step_scale
from bapo_lightning.objectives.corrections.tokens import masked_is, truncated_is

BOUNDS = FixedBounds(0.8, 1.2)
OF_RESPONSES = partial(sequence_masked, low=0.9, high=1.1, level="geometric")
PREFIXES = partial(sequence_truncated_is, cap=1.3, level="prefix")
TRUNCATED, MASKED = partial(truncated_is, cap=1.3), partial(masked_is, low=0.7, high=1.6)


def decoupled_batch(mean=0.0, spread=0.5, **options):
    """Stale data whose proximal log-probs lie `mean` +- `spread` nats from the engine's."""
    batch = stale_batch(random_policy(), **options)
    unit = torch.randn(batch.behaviour_logp.shape, generator=torch.Generator().manual_seed(7))
    noise = (mean + spread * unit) * batch.response_mask
    return replace(batch, proximal_logp=batch.behaviour_logp + noise)


def logp_of(policy, batch):
    """Log-probs [B, T - 1] of all tokens but the first, by the model's own logits."""
    logits = policy.model(batch.input_ids[:, :-1]).logits
    return logits.log_softmax(-1).gather(-1, batch.input_ids[:, 1:, None])[..., 0]


def by_hand(policy, batch, weigh, low, high):
    """Loss and gradient of decoupled PPO over the whole padded batch, from logits and plain PyTorch."""
    policy.zero_grad()
    mask = batch.response_mask[:, 1:]
    ratio = torch.exp(logp_of(policy, batch) - batch.proximal_logp[:, 1:])
    weight = weigh(torch.exp(batch.proximal_logp - batch.behaviour_logp)[:, 1:])
    advantage = batch.advantage[:, None]
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)
    loss = -(weight * surrogate * mask).sum() / mask.sum()
    loss.backward()
    return loss.detach(), gradients(policy)


@pytest.mark.parametrize(("mean", "spread"), [(0.0, 0.5), (0.2, 0.0), (-0.3, 0.0)])
@pytest.mark.parametrize(("correction", "weigh"), [
    (TRUNCATED, lambda w: torch.minimum(w, torch.tensor(1.3))),
    (MASKED, lambda w: w * ((w >= 0.7) & (w <= 1.6))),
    (PREFIXES, lambda w: w.cumprod(1).clamp_max(1.3)),
])  # fmt: skip
def test_loss_and_gradient_are_those_of_decoupled_ppo_written_out(correction, weigh, mean, spread):
    batch = decoupled_batch(mean, spread)
    outputs, gradient = step(random_policy(), BOUNDS, batch, correction=correction, micro_batch_tokens=200)
    loss, expected = by_hand(random_policy(), batch, weigh, 0.8, 1.2)
    assert float(outputs["loss"]) == pytest.approx(float(loss), rel=1e-5)
    assert (gradient - expected).norm() / expected.norm() < 1e-5
    _, uncorrected = step(random_policy(), BOUNDS, batch, micro_batch_tokens=200)
    assert (gradient - uncorrected).norm() / expected.norm() > 0.1, "a correction must make a difference"


def test_an_interpolated_policy_is_that_which_sampled_fresh_data_to_the_bit():
    batch = stale_batch(random_policy())
    interpolated = {"correction": truncated_is, "proximal": log_linear}
    plain, gradient = step(random_policy(), adaptive(target=0.55), batch)
    found, same = step(random_policy(), adaptive(target=0.55), batch, **interpolated)
    assert torch.equal(gradient, same) and torch.equal(plain["loss"], found["loss"])
    late = replace(batch, entry_version=2)  # sampled by version 0, trained by 3
    found, _ = step(random_policy(), adaptive(target=0.55), late, **interpolated)
    tokens = found["tokens"]
    assert set(tokens.age.tolist()) == {3} and set(tokens.age_at_entry.tolist()) == {2}
    torch.testing.assert_close(tokens.ratio, (tokens.logp - tokens.behaviour_logp).div(3).exp())


@pytest.mark.parametrize("correction", [OF_RESPONSES, PREFIXES, partial(carm, high=1.6)])
def test_bounds_loss_and_gradient_do_not_depend_on_the_split(correction):
    batch = decoupled_batch(num_groups=8)
    rule, budgets = adaptive(target=0.6), (budget_for(batch, parts) for parts in (1, 2, 5))
    (whole, gradient), *others = (
        step(random_policy(), rule, batch, micro_batch_tokens=each, correction=correction) for each in budgets
    )
    for outputs, other in others:
        assert outputs["bounds"][0].low == whole["bounds"][0].low
        assert outputs["bounds"][0].high == whole["bounds"][0].high
        assert float(outputs["loss"]) == pytest.approx(float(whole["loss"]), rel=1e-5)
        assert (other - gradient).norm() / gradient.norm() < 1e-5


def searched_by_hand(batch, policy, weight, target):
    """Algorithm 1 as a loop, the contributions summed over all tokens of the batch each time."""
    with torch.no_grad():
        logp = logp_of(policy, batch)
    ratio = torch.exp(logp.double() - batch.proximal_logp[:, 1:].double())
    factor = (weight * batch.response_mask * batch.behaviour_logp.exp())[:, 1:].double()
    signed = factor * ratio * batch.advantage[:, None]

    def share(low, high):
        positive = signed[(signed > 0) & (ratio <= high)].sum()
        negative = -signed[(signed < 0) & (ratio >= low)].sum()
        return float(positive / (positive + negative))

    low, high = 0.6, 1.2
    while share(low, high) < target and high < 3.0 - 1e-9:
        high += 0.05
    while share(low, high) < target and low < 0.9 - 1e-9:
        low += 0.02
    return low, high


@pytest.mark.parametrize("target", [0.45, 0.5])
def test_the_search_balances_the_corrected_contributions(target):
    batch = decoupled_batch(num_groups=8, noise=0.8)
    options = {"correction": MASKED, "micro_batch_tokens": budget_for(batch, 5)}
    outputs, _ = step(random_policy(), adaptive(target=target), batch, **options)
    search = outputs["bounds"][0]
    weight = torch.exp(batch.proximal_logp - batch.behaviour_logp)
    weight = weight * ((weight >= 0.7) & (weight <= 1.6))
    found = pytest.approx((float(search.low), float(search.high)), abs=1e-5)
    assert searched_by_hand(batch, random_policy(), weight, target) == found
    if target == 0.45:
        assert searched_by_hand(batch, random_policy(), torch.ones(()), target) != found


def test_response_log_probs_pass_through_the_model_in_micro_batches_without_gradient():
    policy, seen = random_policy(), []
    rollouts = stale_batch(policy).rollouts
    note = lambda _, inputs, __: seen.append((inputs[0].input_ids.numel(), torch.is_grad_enabled()))  # noqa: E731
    policy.register_forward_hook(note)
    policy.response_logprobs(rollouts, 100)
    assert 1 < len(seen) < len(rollouts) and all(size <= 100 and not graph for size, graph in seen)


def test_collate_puts_proximal_log_probs_next_to_the_behaviours_and_falls_back_to_them():
    rollouts = [builders.rollout([5, 6], [7, 8], [-0.1, -0.2]), builders.rollout([5], [3], [-0.5])]
    made = builders.group("p", rollouts, [1.0, 0.0], [1.0, -1.0])
    first = replace(made.samples[0], scores={"proximal_logp": [-0.3, -0.4]})
    batch = collate([replace(made, samples=(first, made.samples[1]))], {})
    assert batch.proximal_logp.tolist() == [pytest.approx([0, 0, -0.3, -0.4]), pytest.approx([0, -0.5, 0, 0])]
    (micro_batch,) = batch.split(100, batch.response_mask.float())
    assert micro_batch.proximal_logp.tolist() == pytest.approx([-0.3, -0.4, -0.5])
    assert micro_batch.behaviour_logp.tolist() == pytest.approx([-0.1, -0.2, -0.5])


def test_warmup_rises_linearly_and_stays():
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = linear_warmup(optimizer, warmup_updates=4)
    rates = []
    for _ in range(6):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_a_scaled_step_leaves_the_schedule_as_it_was():
    weight, other = (torch.ones(1, requires_grad=True) for _ in range(2))
    optimizer = SGD([{"params": [weight], "lr": 0.5}, {"params": [other]}], lr=8.0)
    schedule = ExponentialLR(optimizer, gamma=0.5)  # which makes the next rate of the last one
    used = []
    for scale in (1.0, 0.1, 0.5):
        weight.grad = torch.ones(1)
        used.append(step_scaled(optimizer, scale))
        schedule.step()
    assert used == [0.5, 0.025, 0.0625]
    assert float(weight) == pytest.approx(1 - sum(used))
    assert [group["lr"] for group in optimizer.param_groups] == [0.0625, 1.0]


def updated(batch, **options):
    """The module after one whole update, and how its weights moved."""
    policy = random_policy()
    made = module(policy, BOUNDS, **options)
    before = torch.cat([parameter.detach().flatten() for parameter in policy.parameters()])
    optimizer = SGD(policy.parameters(), lr=0.1)
    made.manual_backward = lambda loss: loss.backward()
    made.optimizers = lambda: optimizer
    made.lr_schedulers = lambda: ExponentialLR(optimizer, gamma=0.5)
    made._fabric, made._trainer = None, SimpleNamespace(global_step=3, callbacks=[])
    made.training_step(batch, 0)
    return made, torch.cat([parameter.detach().flatten() for parameter in policy.parameters()]) - before


def test_an_update_steps_by_its_factor_whatever_the_split():
    batch = stale_batch(random_policy())
    plain, whole = updated(batch)
    assert plain.last_step_scale == 1 and plain.last_learning_rate == 0.1
    found = []
    for parts in (1, 2, 5):
        made, moved = updated(batch, step_scale=ess_step_scale, micro_batch_tokens=budget_for(batch, parts))
        found.append(made.last_step_scale)
        assert 0.1 < found[-1] < 0.9 and made.last_learning_rate == 0.1 * found[-1]
        torch.testing.assert_close(moved, whole * found[-1], rtol=1e-3, atol=1e-6)
    assert found == pytest.approx([found[0]] * 3, rel=1e-5)
