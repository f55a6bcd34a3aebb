from math import sqrt

import numpy as np
import pytest
import torch
from tests.algorithms.reward_batches import batch, random_batch
from tests.zoo import rewards as reference

from bapo_lightning.algorithms.reinforce_pp import whitened


def test_whitening_counts_tokens():
    # Values 1, 0, 0, 0: mean 1/4, unbiased variance 1/4.
    assert whitened(batch([[1.0, 0.0]], [[1, 3]])).tolist() == [pytest.approx([1.5, -0.5])]
    # Values 1/2, -1/2 three times: mean -1/4, variance 1/4; the group of equal rewards joins with 0.
    found = whitened(batch([[1.0, 0.0]], [[1, 3]]), "mean")
    assert found.tolist() == [pytest.approx([1.5, -0.5])]
    joined = whitened(batch([[1.0, 0.0], [1.0, 1.0]], [[1, 3], [2, 2]]), "mean")
    # Tokens 1/2, -1/2 x3, 0 x4: mean -1/8, sum of squares 1 - 8/64, over 7.
    assert joined[1].tolist() == pytest.approx([0.125 / sqrt(0.875 / 7)] * 2)


@pytest.mark.parametrize("baseline", ["none", "mean"])
@pytest.mark.parametrize("reward", [0.0, 0.1, 1.0])
def test_a_batch_of_equal_rewards_becomes_exact_zeros(baseline, reward):
    assert not whitened(batch(torch.full((4, 3), reward)), baseline).any()


@pytest.mark.parametrize("baseline", ["none", "mean"])
@pytest.mark.parametrize("seed", range(3))
def test_random_batches_give_what_loops_give(baseline, seed):
    made = random_batch(seed)
    expected = reference.reinforce_pp(made.rewards.numpy(), made.lengths.numpy(), baseline == "mean")
    np.testing.assert_allclose(whitened(made, baseline), expected, atol=1e-12)


def test_a_group_of_one_has_no_mean_of_its_own():
    with pytest.raises(ValueError, match="a group of 1"):
        whitened(batch([[1.0], [0.0]]), "mean")
