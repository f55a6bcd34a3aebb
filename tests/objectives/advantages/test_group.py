import numpy as np
import pytest
import torch
from tests.zoo import rewards as reference

from bapo_lightning.objectives.advantages.group import group_advantages

REWARDS = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0]])


@pytest.mark.parametrize(("scale", "baseline", "expected"), [
    ("none", "mean", [[0.5, -0.5, -0.5, 0.5], [-0.25, -0.25, -0.25, 0.75]]),
    ("none", "leave_one_out", [[2 / 3, -2 / 3, -2 / 3, 2 / 3], [-1 / 3, -1 / 3, -1 / 3, 1.0]]),
    ("std", "mean", [[0.8660239, -0.8660239, -0.8660239, 0.8660239], [*[-0.499999] * 3, 1.499997]]),
    ("std", "leave_one_out", [[1.154699, -1.154699, -1.154699, 1.154699], [*[-0.666665] * 3, 1.999996]]),
])  # fmt: skip
def test_the_advantages_of_two_groups_are_the_literal_numbers(scale, baseline, expected):
    found = group_advantages(REWARDS, scale, baseline)
    torch.testing.assert_close(found, torch.tensor(expected), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("baseline", "by_loops"), [("mean", reference.dr_grpo), ("leave_one_out", reference.rloo)]
)
def test_random_rewards_give_what_loops_give(baseline, by_loops):
    rewards = np.random.default_rng(0).uniform(0, 2, (7, 5))
    rewards[3] = rewards[3, 0]
    found = group_advantages(torch.from_numpy(rewards), "none", baseline)
    np.testing.assert_allclose(found, by_loops(rewards), atol=1e-12)


def test_eps_is_added_to_the_deviation():
    advantages = group_advantages(torch.tensor([[0.0, 2.0]]), eps=2 - 2**0.5)  # deviation sqrt 2, unbiased
    assert advantages.tolist() == [pytest.approx([-0.5, 0.5])]


@pytest.mark.parametrize("scale", ["std", "none"])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
@pytest.mark.parametrize("reward", [0.0, 0.1, -1.7, 1e6])
def test_a_group_of_equal_rewards_gives_exact_zeros(scale, baseline, reward):
    assert group_advantages(torch.full((1, 7), reward), scale, baseline).tolist() == [[0.0] * 7]
    assert group_advantages(torch.tensor([[reward]]), scale="none").tolist() == [[0.0]]


@pytest.mark.parametrize(
    ("scale", "baseline"), [("std", "mean"), ("none", "leave_one_out"), ("std", "leave_one_out")]
)
def test_a_group_of_one_has_no_spread_and_no_others(scale, baseline):
    with pytest.raises(ValueError, match="sample at least 2 answers per problem"):
        group_advantages(torch.ones(3, 1), scale, baseline)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"scale": "mad"}, "scale must be 'std' or 'none', got 'mad'"),
    ({"baseline": "median"}, "baseline must be 'mean' or 'leave_one_out', got 'median'"),
    ({"rewards": torch.ones(3)}, r"rewards must be \[problems, group size\], got shape \[3\]"),
])  # fmt: skip
def test_arguments_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        group_advantages(**{"rewards": REWARDS, **arguments})
