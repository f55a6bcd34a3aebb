"""Worlds with every answer listed, against finite differences and the world that they come from."""

import pytest
import torch

from studies.exact.enumerated import factored, tree
from studies.exact.world import factored_softmax


@pytest.mark.parametrize("world", [tree(2, depth=4, need=3), factored(2, wrong_tokens=6)])
def test_gradients_are_those_of_the_expected_reward_and_of_single_answers(world):
    probability = world.probability(world.taken(world.log_probs(world.start)))
    torch.testing.assert_close(probability.sum(1), torch.ones(2, dtype=torch.float64))
    step = 1e-6 * torch.randn_like(world.start)
    risen = world.success(world.start + step) - world.success(world.start - step)
    expected = (world.gradient(world.start) * step).flatten(1).sum(1)
    torch.testing.assert_close(risen / 2, expected, rtol=1e-5, atol=0)
    slopes = torch.zeros_like(world.log_probs(world.start))
    slopes[:, 3] = torch.randn_like(slopes[:, 3])
    torch.testing.assert_close(world.squared_norms(slopes)[:, 3], world.pull(slopes).square().sum(1))


def test_the_factored_world_is_that_of_the_runs():
    listed, whole = factored(1, spread=0.0), factored_softmax(2, 2, 3, 4)
    expected = whole.success(whole.log_probs(whole.prior)).mean()
    torch.testing.assert_close(listed.success(listed.start), expected.double().expand(1), rtol=1e-6, atol=0)
