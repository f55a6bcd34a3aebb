"""Tokens that no policy version sampled at the run's temperature, through a whole update."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from tests.builders import adaptive, random_policy, step
from tests.origins import BOUNDS, collated, groups_of

from bapo_lightning.callbacks.monitors.entropy import EntropyMonitor, MismatchMonitor
from bapo_lightning.callbacks.monitors.monitor import MonitoredUpdate
from bapo_lightning.callbacks.monitors.training import StalenessMonitor
from bapo_lightning.data.rollouts.stages import with_entry_scores
from bapo_lightning.objectives.corrections.tokens import truncated_is
from bapo_lightning.types import Origin


def test_a_weight_scales_the_tokens_of_its_group_and_no_others():
    policy = random_policy()
    batches = [collated(groups_of(policy, (Origin.POLICY,), weight)) for weight in (1.0, 0.25)]
    tables = [step(policy, BOUNDS, batch)[0]["tokens"] for batch in batches]
    factor = torch.where(tables[0].group % 3 == 0, 0.25, 1.0)
    torch.testing.assert_close(tables[1].weight, tables[0].weight * factor)


def test_an_experts_tokens_have_no_age_a_ratio_of_their_probability_and_no_part_in_the_bounds():
    policy = random_policy()
    made = {}
    for origin in (Origin.EXPERT, Origin.POLICY):
        groups = groups_of(policy, (origin, Origin.POLICY))
        made[origin], _ = step(policy, adaptive(), collated(groups))
    tokens = made[Origin.EXPERT]["tokens"]
    expert = tokens.origin == Origin.EXPERT
    assert tokens.age[expert].unique().tolist() == [0] and tokens.age[~expert].unique().tolist() == [3]
    expected = tokens.logp[expert].exp().clamp_min(torch.tensor(-20.0).exp())
    torch.testing.assert_close(tokens.ratio[expert], expected)
    # Without the expert's tokens the search finds what it finds with them.
    groups = [
        replace(group, samples=group.samples[1::2], advantages=group.advantages[1::2])
        for group in groups_of(policy, (Origin.POLICY,))
    ]
    alone, _ = step(policy, adaptive(), collated(groups))
    (one,), (other,) = made[Origin.EXPERT]["bounds"], alone["bounds"]
    assert (one.low, one.high) == (other.low, other.high)
    torch.testing.assert_close(one.value, other.value)


@pytest.mark.parametrize("origin", [Origin.EXPERT, Origin.TEMPERED])
def test_corrections_are_for_tokens_of_the_policy(origin):
    policy = random_policy()
    groups, measured = with_entry_scores(groups_of(policy, (origin, Origin.POLICY)), policy, 500, 0)
    recomputed = ["proximal_logp" in sample.scores for sample in groups[0].samples]
    assert recomputed == [origin is Origin.TEMPERED, True] * 2 and measured["mismatch/abs_logp_diff_mean"] > 0
    outputs, _ = step(policy, BOUNDS, collated(groups), correction=truncated_is)
    tokens = outputs["tokens"]
    assert bool((tokens.correction[tokens.origin == origin] == 1).all())
    assert bool((tokens.correction[tokens.origin == Origin.POLICY] != 1).any())


def test_monitors_measure_the_tokens_of_the_policy():
    policy = random_policy()
    batch = collated(groups_of(policy, (Origin.EXPERT, Origin.POLICY)))
    outputs, _ = step(policy, BOUNDS, batch)
    tokens = outputs["tokens"]
    owner = SimpleNamespace(last_learning_rate=0.1, correction=None)
    update = MonitoredUpdate(0, 0, tokens, outputs["bounds"], batch, owner, {})
    sampled = tokens.origin == Origin.POLICY
    difference = (tokens.logp - tokens.behaviour_logp)[sampled]
    mismatch = MismatchMonitor().measure(update)["mismatch/abs_logp_diff_mean"]
    assert float(mismatch) == pytest.approx(float(difference.abs().mean()))
    kl = EntropyMonitor().measure(update)["policy/approx_kl"]
    assert float(kl) == pytest.approx(float((difference.exp() - 1 - difference).mean()), rel=1e-4)
    measured = StalenessMonitor().measure(replace(update, version=3))
    assert (float(measured["staleness/age_mean"]), float(measured["staleness/age_queueing_mean"])) == (3, 3)
