from math import gamma

import numpy as np
import pytest
import torch
from tests.algorithms.reward_batches import batch, random_batch
from tests.zoo import rewards as reference

from bapo_lightning.algorithms.bnpo import beta_normalised


def test_two_problems_are_divided_by_the_density_of_their_rates():
    # p = 1/4 and 3/4: m = 1/2, v = 1/8, n = 1; alpha = beta = 7/6.
    found = beta_normalised(batch(torch.tensor([[1.0, 0, 0, 0], [1, 1, 1, 0]], dtype=torch.float64)))
    factor = gamma(7 / 6) ** 2 / gamma(7 / 3) / (3 / 16) ** (1 / 6)
    assert found[0].tolist() == pytest.approx([0.75 * factor] + [-0.25 * factor] * 3)
    assert found[1].tolist() == pytest.approx([0.25 * factor] * 3 + [-0.75 * factor])


def test_one_problem_and_equal_ones_are_not_normalised():
    assert beta_normalised(batch([[1.0, 0.0]])).tolist() == [[0.5, -0.5]]
    assert beta_normalised(batch([[1.0, 0.0], [0.0, 1.0]])).tolist() == [[0.5, -0.5], [-0.5, 0.5]]
    assert beta_normalised(batch([[1.0, 1.0], [0.0, 0.0]])).tolist() == [[0, 0], [0, 0]]
    assert beta_normalised(batch([[1.0, -1.0]]), lowest=-1).tolist() == [[0.5, -0.5]]


@pytest.mark.parametrize("seed", range(3))
def test_random_batches_give_what_loops_give(seed):
    made = random_batch(seed)
    np.testing.assert_allclose(beta_normalised(made), reference.bnpo(made.rewards.numpy()), rtol=1e-9)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="highest must be above lowest, got 0 and 1"):
        beta_normalised(batch([[1.0, 0.0]]), lowest=1, highest=0)
    with pytest.raises(ValueError, match="a group of 1"):
        beta_normalised(batch([[1.0], [0.0]]))
