"""The paper's Entropy-Clip Rule and AsymRE's dynamics (arXiv 2506.20520) against exact expectations."""

import pytest
import torch

from bapo_lightning.objectives.entropy_rule import predicted_entropy_change
from bapo_lightning.objectives.token_table import table_of
from studies.exact.world import contextual_table

WORLD = contextual_table(num_contexts=3, num_actions=6)


def some_policy(seed=0):
    return torch.randn(WORLD.prior.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def entropy(parameters):
    return WORLD.entropy(WORLD.log_probs(parameters))


def centred(right):
    return right - right.mean(-1, keepdim=True)


@pytest.mark.parametrize("clipped", [False, True])
def test_the_entropy_rule_is_exact_to_first_order_for_steps_of_the_natural_gradient(clipped):
    """A natural-gradient step adds eta A X to the logits of a tabular policy: Eq. 6 is its derivative."""
    parameters = some_policy()
    logits = WORLD.log_probs(parameters)
    generator = torch.Generator().manual_seed(1)
    advantage = centred(torch.rand(logits.shape, generator=generator, dtype=torch.float64))
    alive = torch.rand(logits.shape, generator=torch.Generator().manual_seed(2)) < (0.6 if clipped else 2)
    errors = []
    for rate in (1e-2, 1e-3):
        predicted = sum(
            predicted_entropy_change(row[0], a[0], x[0], rate, row[0].exp())
            for row, a, x in zip(logits, advantage, alive, strict=True)
        ) / len(logits)
        change = entropy(parameters + rate * advantage * alive) - entropy(parameters)
        errors.append(abs(float(change - predicted)))
        assert float(change) == pytest.approx(float(predicted), rel=0.05)
    assert errors[1] < errors[0] / 50, "the error is of second order"


def asymre_limit(behaviour, reward, baseline):
    """pi* = (mu (r - V) - tau)+ / (mu(r) - V), where tau makes it a distribution (Theorem of 2506.20520)."""
    mass = behaviour * (reward - baseline)
    total = float(mass.sum())
    low, high = float(mass.min()) - 1, float(mass.max())
    for _ in range(200):
        tau = (low + high) / 2
        if float((mass - tau).clamp_min(0).sum()) > total:
            low = tau
        else:
            high = tau
    return (mass - (low + high) / 2).clamp_min(0) / total


def every_answer(parameters, behaviour, baseline):
    """A token table of every action of every context, weighted by the behaviour policy's probability: sums
    over it are expectations, so an update on it has no noise.
    """
    logp, behaviour_logp = (WORLD.log_probs(each).squeeze(-2) for each in (parameters, behaviour))
    entropy = -(logp.exp() * logp).sum(-1, keepdim=True).expand_as(logp)
    number = torch.arange(logp.numel())
    return table_of(
        logp.flatten(), behaviour_logp.flatten(), entropy=entropy.flatten(), age=torch.zeros_like(number),
        sequence=number, group=number // logp.shape[-1], position=torch.zeros_like(number),
        count=torch.ones(logp.numel()), advantage=(WORLD.right.squeeze(-2) - baseline).flatten(),
        weight=behaviour_logp.exp().flatten() / WORLD.num_contexts,
    )  # fmt: skip


def follow(baseline, steps=3000, rate=6.0):
    """Gradient ascent on E_mu[(r - V) log pi], by way of our token table."""
    behaviour = some_policy()
    parameters = behaviour.clone().requires_grad_()
    for _ in range(steps):
        table = every_answer(parameters, behaviour, baseline)
        objective = (table.weight * table.advantage * table.logp).sum()
        (gradient,) = torch.autograd.grad(objective, parameters)
        parameters = (parameters + rate * gradient).detach().requires_grad_()
    return behaviour, parameters.detach()


@pytest.mark.slow
@pytest.mark.parametrize("baseline", [-1.0, -0.2, 0.02])
def test_asymre_below_the_mean_reward_tends_to_its_closed_form(baseline):
    behaviour, parameters = follow(baseline)
    assert float((WORLD.success(WORLD.log_probs(behaviour))).min()) > baseline
    mu, found = (WORLD.log_probs(each).exp().squeeze(1) for each in (behaviour, parameters))
    for row, policy, reward in zip(mu, found, WORLD.right.squeeze(1), strict=True):
        expected = asymre_limit(row, reward.double(), baseline)
        torch.testing.assert_close(policy, expected, rtol=0, atol=5e-3)


def test_asymre_above_the_mean_reward_collapses_to_one_answer():
    _, parameters = follow(0.9, steps=1000)
    policy = WORLD.log_probs(parameters).exp()
    assert float(policy.max(-1).values.min()) > 0.99
