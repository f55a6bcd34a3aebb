"""Samples that are not trained on: a minibatch with them is one without them."""

from array import array
from dataclasses import replace

import pytest
import torch
from tests import builders
from tests.builders import adaptive, budget_for, random_model, random_policy, stale_batch, step
from tests.modules.test_turn_batches import conversations

from bapo_lightning.data.batches.batch import collate, split_over_ranks
from bapo_lightning.data.batches.model_input import Layout
from bapo_lightning.modules.bound_rules import FixedBounds
from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.options import ModelOptions
from bapo_lightning.objectives.weighting import sequence_mean
from bapo_lightning.types import FinishReason, Origin, Rollout, Segment, Steps

METRICS = {"rollout/num_samples": 0.0, "rollout/num_tokens": 0.0}
LEFT_OUT = {(0, 0), (0, 3), (1, 1), (2, 0), (2, 1), (2, 2)}  # numbers of groups and samples
BOUNDS = [FixedBounds(0.8, 1.2), adaptive(target=0.45)]


def groups(left_out=LEFT_OUT, talks=False, kept=True, **changes):
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


@pytest.mark.parametrize(("packing", "bounds", "talks"), [
    ("none", BOUNDS[0], True), ("none", BOUNDS[1], False), ("padding_free", BOUNDS[1], True),
])  # fmt: skip
def test_the_gradient_is_that_of_the_minibatch_without_them(packing, bounds, talks, tmp_path):
    random_model().save_pretrained(tmp_path)
    policy = build_policy(ModelOptions(str(tmp_path), packing=packing), 1.0)
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


def test_a_share_of_them_alone_has_no_micro_batch_and_the_others_sum_to_the_same():
    policy, total = random_policy(), float(collate(groups(kept=False), METRICS).num_tokens)
    weighting = {"weighting": lambda mask: mask / total}
    _, whole = step(policy, BOUNDS[0], collate(groups(kept=False), METRICS), **weighting)
    parts = []
    for share in split_over_ranks(collate(groups(), METRICS), 2):
        policy.zero_grad()
        parts.append(step(policy, BOUNDS[0], share, **weighting)[1].clone())
    torch.testing.assert_close(sum(parts), whole, rtol=1e-4, atol=1e-6)
    left_out = collate(groups({(0, 0)}), METRICS)
    alone = split_over_ranks(left_out, 12)[-1]
    assert (alone.num_tokens, alone.split(10, alone.response_mask.float())) == (0, [])


@pytest.mark.parametrize(("layout", "talks"), [
    (Layout.PADDED, False), (Layout.PACKED, True), (Layout.SHARED, True),
])  # fmt: skip
def test_they_stand_in_no_micro_batch_whatever_the_layout(layout, talks):
    batch, alone = (collate(groups(talks=talks, kept=kept), METRICS) for kept in (True, False))
    for budget in (1, 50, 10_000):
        weights = (each.response_mask.float() / each.num_tokens for each in (batch, alone))
        own, others = (each.split(budget, next(weights), layout) for each in (batch, alone))
        columns = ("input_ids", "index", "targets", "behaviour_logp", "advantage", "weight", "position")
        for one, other in zip(own, others, strict=True):
            for name in columns:
                assert torch.equal(getattr(one, name), getattr(other, name))
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
    steps, every = Steps(array("i", [0]), array("f", [1.0])), {(place // 4, place % 4) for place in range(12)}
    batch = collate(groups(every, steps=steps), METRICS)
    assert batch.num_tokens == collate(groups(set()), METRICS).num_tokens and batch.num_masked_tokens == 0
    assert batch.step_advantage is None and not batch.advantage.any()
    assert all(group.advantages == (0.0,) * 4 for group in batch.groups)
    _, gradient = step(random_policy(), adaptive(), batch)
    assert torch.count_nonzero(gradient) == 0


def test_a_group_of_which_only_an_expert_is_left_keeps_its_tokens_likewise():
    answer, origins = builders.rollout([1], [2], [-1.0]), (Origin.EXPERT, Origin.POLICY)
    answers = [replace(answer, origin=origin) for origin in origins]
    made = builders.group("p", answers, [1.0, 0.0], [1.0, -1.0])
    made = replace(made, samples=(made.samples[0], replace(made.samples[1], is_trained=False)))
    batch = collate([made], METRICS)
    assert (batch.response_lengths, batch.advantage.tolist()) == ((1, 1), [0.0, 0.0])
    assert made.newest_version == 0 and batch.version_range() == (0, 0)


def test_only_tokens_that_are_too_old_count_as_masked():
    def resumed(count):
        old, new = (Segment(array("i", [7] * count), array("f", [-1.0] * count), v) for v in (2, 5))
        return Rollout(array("i", [4]), (old, new), FinishReason.STOP)

    made = builders.group("p", [resumed(3), resumed(4), resumed(1)], [1.0, 0.0, 0.0], [2.0, -1.0, -1.0])
    first, second, third = made.samples
    batch = collate([replace(made, samples=(first, replace(second, is_trained=False), third))], METRICS, 4, 6)
    assert batch.response_lengths == (3, 0, 1) and batch.skipped == (3, 8, 1)
    assert (batch.num_tokens, batch.num_masked_tokens, batch.version_range()) == (4, 4, (5, 5))
    (micro_batch,) = batch.split(100, batch.response_mask.float())
    assert micro_batch.position.tolist() == [3, 4, 5, 1] and micro_batch.sequence.tolist() == [0, 0, 0, 2]
