"""Advantages of a rollout batch: what they are told, and which groups they are given to."""

import pytest
import torch
from tests.builders import group, rollout

from bapo_lightning.data.rollouts.admission import DynamicSampling
from bapo_lightning.data.rollouts.rules import Rules
from bapo_lightning.data.rollouts.stages import with_batch_advantages


def groups(scores):
    return [
        group(
            f"p{index}",
            [rollout([1], [2] * (3 + place), [-1.0] * (3 + place)) for place in range(len(row))],
            row,
            [0.0] * len(row),
        )
        for index, row in enumerate(scores)
    ]


def test_the_batch_holds_rewards_lengths_and_ids_and_its_answer_becomes_the_advantages():
    seen, made = [], groups([[1.0, 0.0], [0.0, 0.0]])
    found = with_batch_advantages(
        lambda batch: seen.append(batch) or batch.rewards - 0.25, made, 1, Rules().admits
    )
    (batch,) = seen
    assert batch.rewards.tolist() == [[1, 0], [0, 0]] and batch.lengths.tolist() == [[3, 4], [3, 4]]
    assert batch.problems == ("p0", "p1") and batch.is_new == (True, False)
    assert not batch.advantages.any()
    assert [item.advantages for item in found] == [(0.75, -0.25), (-0.25, -0.25)]
    assert [item.samples for item in found] == [item.samples for item in made]


def test_groups_that_only_fill_a_batch_are_no_part_of_it_and_keep_advantages_of_zero():
    made = groups([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
    admits = DynamicSampling(max_rounds=1).admits
    found = with_batch_advantages(
        lambda batch: torch.full_like(batch.rewards, len(batch.problems)), made, 3, admits
    )
    assert [item.advantages for item in found] == [(0, 0), (1, 1), (0, 0)]
    assert with_batch_advantages(pytest.fail, made[::2], 2, admits) == made[::2]
