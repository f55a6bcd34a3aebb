"""Steps on their way through a minibatch: collated, split, packed, shared over ranks, in part too old."""

from array import array
from dataclasses import replace
from itertools import count

import pytest
import torch
from tests.builders import budget_for, group, random_policy, rollout, stale_batch, step

from bapo_lightning.data.batches.batch import blank_batch, collate, split_over_ranks
from bapo_lightning.modules.bound_rules import FixedBounds
from bapo_lightning.objectives.sequences import step_sum
from bapo_lightning.objectives.token_table import reads
from bapo_lightning.objectives.weighting import step_mean
from bapo_lightning.types import Segment, Steps

FREE = FixedBounds(0.0, 1e9)
METRICS = {"rollout/num_samples": 0.0, "rollout/num_tokens": 0.0}


@reads("step")
def of_steps(table):
    """An objective of the ratios of whole steps."""
    return table.advantage * step_sum(table.log_ratio, table)


def stepped(length, size=3):
    """Steps of so many tokens, whose advantages are their numbers and a half."""
    numbers = [position // size for position in range(length)]
    return Steps(array("i", numbers), array("f", [number + 0.5 for number in numbers]))


def random_batch():
    """Responses in steps of three tokens, every fifth without steps."""
    groups, numbers = [], count()
    for item in stale_batch(random_policy()).groups:
        steps = [stepped(sample.rollout.length) for sample in item.samples]
        samples = zip(item.samples, steps, strict=True)
        made = (one if next(numbers) % 5 == 4 else replace(one, steps=own) for one, own in samples)
        groups.append(replace(item, samples=tuple(made)))
    return collate(groups, METRICS)


def test_tokens_have_number_and_advantage_of_their_step_and_others_those_of_their_response():
    answers = [rollout([1], [5] * 4, [-1.0] * 4), rollout([1, 2], [5] * 2, [-1.0] * 2)]
    made = group("p", answers, [1, 0], [7, 8])
    first, second = made.samples
    batch = collate([replace(made, samples=(replace(first, steps=stepped(4)), second))], {})
    assert batch.step.tolist() == [[0, 0, 0, 0, 1], [0, 0, 0, 0, 0]]
    assert batch.step_advantage.tolist() == [[0, 0.5, 0.5, 0.5, 1.5], [0, 0, 8, 8, 0]]
    assert (batch.step_counts, batch.num_steps) == ((2, 1), 3)
    assert blank_batch(batch).num_steps == 1
    without = collate([made], {})
    assert without.step is None and without.step_advantage is None and without.num_steps == 2
    (micro_batch,) = batch.split(100, batch.response_mask.float())
    assert micro_batch.step.tolist() == [0, 0, 0, 1, 0, 0]
    assert micro_batch.advantage.tolist() == [0.5, 0.5, 0.5, 1.5, 8, 8]


def test_of_a_step_that_is_in_part_too_old_the_rest_is_trained_on():
    old, new = (Segment(array("i", [5] * 4), array("f", [-1.0] * 4), version) for version in (0, 1))
    made = group("p", [replace(rollout([1], [5], [-1.0]), segments=(old, new))], [1.0], [7.0])
    made = replace(made, samples=(replace(made.samples[0], steps=stepped(8)),))
    batch = collate([made], {}, oldest_trained=1)
    (micro_batch,) = batch.split(100, batch.response_mask.float())
    assert micro_batch.step.tolist() == [1, 1, 2, 2] and batch.num_steps == 2
    assert micro_batch.advantage.tolist() == [1.5, 1.5, 2.5, 2.5]


def test_shares_hold_every_step_once():
    batch = random_batch()
    shares = split_over_ranks(batch, 3)
    assert sum(share.num_steps for share in shares) == batch.num_steps > 48
    for name in ("step", "step_advantage"):
        parts = torch.cat([getattr(share, name)[share.response_mask] for share in shares])
        assert torch.equal(parts.sort().values, getattr(batch, name)[batch.response_mask].sort().values)
    assert [share.num_steps for share in split_over_ranks(batch, 30)][-1] == 0


@pytest.mark.parametrize("parts", [2, 5])
def test_the_update_depends_on_neither_split_nor_ranks(parts):
    policy, batch = random_policy(), random_batch()
    options = {"objective": of_steps, "weighting": step_mean}
    outputs, whole = step(policy, FREE, batch, **options)
    assert outputs["tokens"]["step"].max() == 6 and whole.abs().max() > 0
    _, found = step(policy, FREE, batch, micro_batch_tokens=budget_for(batch, parts), **options)
    torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-5)
    options["weighting"] = lambda mask: mask / batch.num_steps
    policy.zero_grad()
    summed = sum(step(policy, FREE, share, **options)[1].clone() for share in split_over_ranks(batch, parts))
    torch.testing.assert_close(summed, whole, rtol=1e-4, atol=1e-5)
