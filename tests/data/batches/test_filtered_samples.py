"""Samples that are not trained on: a minibatch with them is one without them."""

from array import array
from dataclasses import replace

import pytest
import torch
from tests.builders import adaptive, budget_for, group, random_policy, rollout, stale_batch, step
from tests.callbacks.monitors.token_table import update
from tests.modules.test_turn_batches import conversations, made_policy

from bapo_lightning.callbacks.monitors.training import StalenessMonitor, TrainingMonitor
from bapo_lightning.data.batches.batch import collate
from bapo_lightning.data.batches.layout import Layout
from bapo_lightning.data.batches.shares import split_over_ranks
from bapo_lightning.data.rollouts.proximal import with_entry_scores
from bapo_lightning.modules.bound_rules import FixedBounds
from bapo_lightning.objectives.weighting import sequence_mean
from bapo_lightning.types import FinishReason, Group, Origin, Rollout, Segment, Steps

METRICS = {"rollout/num_samples": 0.0, "rollout/num_tokens": 0.0}
LEFT_OUT = {(0, 0), (0, 3), (1, 1), (2, 0), (2, 1), (2, 2)}  # numbers of groups and samples
EVERY = {(number, index) for number in range(3) for index in range(4)}
BOUNDS = [FixedBounds(0.8, 1.2), adaptive(target=0.45)]


def groups(left_out=LEFT_OUT, talks=False, kept=True, **changes) -> list[Group]:
    """Groups with some samples not trained on, or without these."""
    found = []
    made = conversations() if talks else stale_batch(random_policy(), num_groups=3).groups
    for number, each in enumerate(made):
        prompt, pairs = each.samples[0].rollout.prompt_ids, []
        for index, (one, advantage) in enumerate(zip(each.samples, each.advantages, strict=True)):
            is_trained = (number, index) not in left_out
            own = replace(one.rollout, prompt_ids=prompt)
            if is_trained or kept:
                pairs.append((replace(one, rollout=own, is_trained=is_trained, **changes), advantage))
        samples, advantages = zip(*pairs, strict=True)
        found.append(replace(each, samples=samples, advantages=advantages))
    return found


@pytest.mark.parametrize("talks", [False, True])
@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("packing", ["none", "padding_free"])
def test_the_gradient_is_that_of_the_minibatch_without_them(packing, bounds, talks, tmp_path):
    policy = made_policy(packing, tmp_path)
    alone = collate(groups(talks=talks, kept=False), METRICS)
    expected, without = step(policy, bounds, alone)
    for parts in (1, 3):
        budget = 100_000 if parts == 1 else budget_for(alone, parts)
        batch = collate(groups(talks=talks), METRICS)
        found, gradient = step(policy, bounds, batch, micro_batch_tokens=budget)
        torch.testing.assert_close(gradient, without, rtol=1e-4, atol=1e-5 * float(without.abs().max()))
        assert float(found["loss"]) == pytest.approx(float(expected["loss"]), rel=1e-4)
        assert len(found["tokens"].logp) == len(expected["tokens"].logp) == alone.num_tokens
        (one,), (other,) = found["bounds"], expected["bounds"]
        assert (one.low, one.high) == (other.low, other.high)
        torch.testing.assert_close(one.value, other.value, equal_nan=True)


@pytest.mark.parametrize("talks", [False, True])
def test_the_same_holds_in_two_shares(talks):
    policy, batch = random_policy(), collate(groups(talks=talks), METRICS)
    alone = collate(groups(talks=talks, kept=False), METRICS)
    total = float(alone.num_tokens)
    weighting = {"weighting": lambda mask: mask / total}
    _, whole = step(policy, BOUNDS[0], alone, **weighting)
    parts = []
    for share in split_over_ranks(batch, 2):
        policy.zero_grad()
        parts.append(step(policy, BOUNDS[0], share, **weighting)[1].clone())
    torch.testing.assert_close(sum(parts), whole, rtol=1e-4, atol=1e-6)
    assert sum(share.num_tokens for share in split_over_ranks(batch, 2)) == alone.num_tokens


@pytest.mark.parametrize("talks", [False, True])
@pytest.mark.parametrize("layout", Layout)
def test_they_stand_in_no_micro_batch_whatever_the_layout(layout, talks):
    batch, alone = (collate(groups(talks=talks, kept=kept), METRICS) for kept in (True, False))
    for budget in (1, 50, 10_000):
        own, others = (
            each.split(budget, each.response_mask.float() / each.num_tokens, layout)
            for each in (batch, alone)
        )
        assert len(own) == len(others)
        for name in ("input_ids", "index", "targets", "behaviour_logp", "advantage", "weight", "position"):
            for one, other in zip(own, others, strict=True):
                torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=0, atol=0)
    rows = torch.cat([part.sequence for part in batch.split(10_000, batch.response_mask.float(), layout)])
    numbers = {4 * number + index for number, index in LEFT_OUT}
    assert set(rows.tolist()) == set(range(12)) - numbers


def test_responses_still_count_them():
    policy = random_policy()
    batch, alone = (collate(groups(kept=kept), METRICS) for kept in (True, False))
    bounds, weighting = FixedBounds(0.8, 1.2), {"weighting": sequence_mean}
    _, found = step(policy, bounds, batch, **weighting)
    _, expected = step(policy, bounds, alone, **weighting)
    torch.testing.assert_close(found * 12, expected * (12 - len(LEFT_OUT)), rtol=1e-4, atol=1e-5)


def test_a_group_of_them_alone_keeps_its_tokens_without_advantages():
    steps = Steps(array("i", [0]), array("f", [1.0]))
    batch = collate(groups(EVERY, steps=steps), METRICS)
    assert batch.num_tokens == collate(groups(set()), METRICS).num_tokens and batch.num_masked_tokens == 0
    assert batch.step_advantage is None and not batch.advantage.any()
    assert all(group.advantages == (0.0,) * 4 for group in batch.groups)
    _, gradient = step(random_policy(), adaptive(), batch)
    assert torch.count_nonzero(gradient) == 0
    one = {(1, index) for index in range(4)}
    mixed = collate(groups(one), METRICS)
    assert mixed.num_tokens == batch.num_tokens and mixed.advantage.count_nonzero() == 8


def test_a_group_of_which_only_an_expert_is_left_keeps_its_tokens_likewise():
    answers = [replace(rollout([1], [2], [-1.0]), origin=origin) for origin in (Origin.EXPERT, Origin.POLICY)]
    made = group("p", answers, [1.0, 0.0], [1.0, -1.0])
    made = replace(made, samples=(made.samples[0], replace(made.samples[1], is_trained=False)))
    batch = collate([made], METRICS)
    assert (batch.response_lengths, batch.advantage.tolist()) == ((1, 1), [0.0, 0.0])
    assert made.newest_version == 0 and batch.version_range() == (0, 0)


def test_only_tokens_that_are_too_old_count_as_masked():
    def resumed(count):
        old, new = (Segment(array("i", [7] * count), array("f", [-1.0] * count), v) for v in (2, 5))
        return Rollout(array("i", [4]), (old, new), FinishReason.STOP)

    made = group("p", [resumed(3), resumed(4), resumed(1)], [1.0, 0.0, 0.0], [2.0, -1.0, -1.0])
    first, second, third = made.samples
    batch = collate([replace(made, samples=(first, replace(second, is_trained=False), third))], METRICS, 4, 6)
    assert batch.response_lengths == (3, 0, 1) and batch.skipped == (3, 8, 1)
    assert (batch.num_tokens, batch.num_masked_tokens, batch.version_range()) == (4, 4, (5, 5))
    (micro_batch,) = batch.split(100, batch.response_mask.float())
    assert micro_batch.position.tolist() == [3, 4, 5, 1] and micro_batch.sequence.tolist() == [0, 0, 0, 2]


def test_scores_at_entry_stay_beside_their_tokens():
    policy = random_policy()
    scored = [
        with_entry_scores(groups(kept=kept), policy, 300, 0, ("logp", "entropy"))[0] for kept in (True, False)
    ]
    own, others = (
        each.split(10_000, each.response_mask.float())[0]
        for each in (collate(made, METRICS) for made in scored)
    )
    torch.testing.assert_close(own.proximal_logp, others.proximal_logp, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        own.scores["entry_entropy"], others.scores["entry_entropy"], rtol=1e-5, atol=1e-5
    )


def test_a_whole_share_of_them_has_no_micro_batch():
    answers = [rollout([1], [2] * count, [-1.0] * count) for count in (9, 2)]
    made = group("p", answers, [1.0, 0.0], [1.0, -1.0])
    made = replace(made, samples=(made.samples[0], replace(made.samples[1], is_trained=False)))
    first, second = split_over_ranks(collate([made], METRICS), 2)
    assert (first.num_tokens, second.num_tokens) == (9, 0)
    assert second.split(10, second.response_mask.float()) == []


def test_their_tokens_are_in_no_metric_and_their_rewards_and_lengths_in_those_of_the_responses():
    whole = update()
    batch = whole.batch
    (first, *others) = batch.groups
    left_out = replace(first, samples=(replace(first.samples[0], is_trained=False), *first.samples[1:]))
    filtered = replace(whole, batch=collate([left_out, *others], METRICS))
    count = first.samples[0].rollout.length
    assert filtered.batch.num_tokens == batch.num_tokens - count
    found, before = (StalenessMonitor().measure(each) for each in (filtered, whole))
    assert (found["staleness/masked_tokens"], before["staleness/masked_tokens"]) == (0, 0)
    found, before = (TrainingMonitor().measure(each) for each in (filtered, whole))
    for name in ("reward", "shaped_reward", "response_length"):
        assert found[f"train/{name}"] == before[f"train/{name}"]
    advantage, length = first.advantages[0], "train/response_length_"
    sign = "positive" if advantage > 0 else "negative"
    alike = [
        sample.rollout.length
        for each in batch.groups
        for sample, other in zip(each.samples, each.advantages, strict=True)
        if other * advantage > 0 and sample is not first.samples[0]
    ]
    assert found[length + sign] == pytest.approx(sum(alike) / len(alike))
