import numpy as np
import pytest
import torch
from tests.zoo import rewards as reference

from bapo_lightning.algorithms.pass_at_k import best_minus_second

HOMONYMS = {"pass_at_k": "a metric"}
ROWS = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])


@pytest.mark.parametrize(("scale", "best"), [("std", 2.0), ("none", 1.0)])  # the deviation is a half
def test_the_best_gets_what_it_is_better_than_the_second(scale, best):
    expected = torch.tensor([[best, 0, 0, 0], [0] * 4, [0] * 4])
    torch.testing.assert_close(best_minus_second(ROWS, scale), expected, rtol=0, atol=1e-4)


def test_random_rewards_give_what_loops_give():
    rewards = np.random.default_rng(0).uniform(0, 2, (7, 5))
    rewards[3] = rewards[3, 0]
    found = best_minus_second(torch.from_numpy(rewards))
    np.testing.assert_allclose(found, reference.pass_at_k(rewards), atol=1e-12)


def test_ties_for_the_best_have_none_and_what_cannot_be_is_refused():
    assert best_minus_second(torch.tensor([[0.5, 0.2, 0.5]])).tolist() == [[0, 0, 0]]
    with pytest.raises(ValueError, match="scale must be 'std' or 'none', got 'mad'"):
        best_minus_second(ROWS, "mad")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"a group of 1 .* at least 2 answers per problem"):
        best_minus_second(torch.ones(3, 1))
