from array import array

import pytest
import torch

from bapo_lightning.data.rollouts.shaping import OverlongPenalty
from bapo_lightning.objectives.advantages.group import group_advantages
from bapo_lightning.types import Rollout, Segment


def shaped(penalty, length):
    segment = Segment(array("i", [0] * length), array("f", [0.0] * length), 0)
    return penalty.shape(Rollout(array("i", [1]), (segment,)), version=0)


def test_the_overlong_penalty_is_a_ramp_before_the_limit():
    penalty = OverlongPenalty(limit=48, buffer=12, factor=1.0)
    assert [shaped(penalty, length) for length in (1, 36, 39, 42, 48)] == [0.0, 0.0, -0.25, -0.5, -1.0]
    assert shaped(OverlongPenalty(limit=10, buffer=10, factor=2.0), 5) == -1.0


def test_by_default_it_is_as_strong_as_dapos_beside_rewards_that_are_one_apart():
    ours, dapos = OverlongPenalty(limit=48, buffer=12), OverlongPenalty(limit=48, buffer=12, factor=1.0)
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0]])
    lengths = (40, 48, 20, 10)
    zero_or_one = rewards + torch.tensor([shaped(ours, length) for length in lengths])
    plus_or_minus_one = 2 * rewards - 1 + torch.tensor([shaped(dapos, length) for length in lengths])
    torch.testing.assert_close(group_advantages(zero_or_one), group_advantages(plus_or_minus_one))


def test_a_buffer_beyond_the_limit_is_refused():
    with pytest.raises(ValueError, match=r"must be in 1..limit \(10\), got 11"):
        OverlongPenalty(limit=10, buffer=11)
