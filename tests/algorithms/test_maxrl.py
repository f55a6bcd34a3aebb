"""MaxRL's advantages by hand and by loops."""

import numpy as np
import pytest
import torch
from tests.zoo import rewards as reference

from bapo_lightning.algorithms.maxrl import maxrl


def test_gains_are_divided_by_the_mean():
    found = maxrl(torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]]))
    expected = torch.tensor([[3, -1, -1, -1], [1 / 3, 1 / 3, 1 / 3, -1], [0] * 4])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_random_rewards_give_what_loops_give():
    rewards = np.random.default_rng(0).uniform(0, 2, (7, 5))
    rewards[3] = rewards[3, 0]
    np.testing.assert_allclose(maxrl(torch.from_numpy(rewards)), reference.maxrl(rewards), atol=1e-12)


def test_a_group_of_one_is_refused():
    with pytest.raises(ValueError, match=r"a group of 1 .* at least 2 answers per problem"):
        maxrl(torch.ones(3, 1))
