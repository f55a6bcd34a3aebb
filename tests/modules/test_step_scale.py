"""A factor of an update's learning rate: what it is of, what steps and schedule make of it."""

from types import SimpleNamespace

import pytest
import torch
from tests.builders import budget_for, module, random_policy, stale_batch
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR

from bapo_lightning.modules.bound_rules import FixedBounds
from bapo_lightning.modules.schedules import step_scaled
from bapo_lightning.objectives.corrections.step_size import ess_step_scale


def test_a_scaled_step_leaves_the_schedule_as_it_was():
    weight = torch.ones(1, requires_grad=True)
    optimizer = SGD(
        [{"params": [weight], "lr": 0.5}, {"params": [torch.ones(1, requires_grad=True)]}], lr=8.0
    )
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
    made = module(policy, FixedBounds(0.8, 1.2), **options)
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
