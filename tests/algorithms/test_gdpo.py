from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.algorithms.reward_batches import batch, random_batch
from tests.commands import train_to_end
from tests.zoo import rewards as reference

from bapo_lightning.algorithms.gdpo import gdpo


def of_parts(seed=0):
    generator = np.random.default_rng(seed)
    parts = generator.integers(0, 3, (4, 5, 2)).astype(float)
    parts[1, :, 0] = 1.0  # all the same
    parts = np.concatenate([parts, np.zeros((4, 5, 1))], -1)
    return replace(batch(torch.from_numpy(parts.sum(-1))), parts=torch.from_numpy(parts))


def test_rewards_that_sum_to_the_same_keep_their_kinds():
    # One right and badly formed, one wrong and well formed, two neither: sums 1, 1, 0, 0 in both groups.
    parts = torch.zeros(2, 4, 3)
    parts[0, 0, 0] = parts[0, 1, 1] = parts[1, 0, 0] = parts[1, 1, 0] = 1.0
    made = replace(batch(parts.sum(-1)), parts=parts)
    first, second = gdpo(made).tolist()
    assert first[0] == pytest.approx(first[1]) and second[0] == pytest.approx(second[1])
    assert first[0] != pytest.approx(second[0], abs=0.05)
    weighted = gdpo(made, weights=[2.0, 0.5])
    assert weighted[0, 0] > weighted[0, 1]


@pytest.mark.parametrize("weights", [None, [1.0, 0.25]])
@pytest.mark.parametrize("seed", range(3))
def test_random_batches_give_what_loops_give(seed, weights):
    made = of_parts(seed)
    expected = reference.gdpo(made.parts.numpy(), [*(weights or [1.0, 1.0]), 1.0])
    np.testing.assert_allclose(gdpo(made, weights), expected, atol=1e-12)


def test_without_parts_it_is_the_reward_itself_and_shaping_is_a_reward_more():
    made = random_batch(1)
    np.testing.assert_allclose(gdpo(made), reference.gdpo(made.rewards.numpy()[..., None], [1.0]), atol=1e-12)
    shaped = of_parts()
    shaped.parts[..., 2] = torch.arange(20.0).view(4, 5)
    expected = reference.gdpo(shaped.parts.numpy(), [2.0, 1.0, 1.0])
    np.testing.assert_allclose(gdpo(shaped, [2.0, 1.0]), expected, atol=1e-12)


def test_a_batch_of_equal_rewards_becomes_exact_zeros():
    assert not gdpo(batch(torch.full((4, 3), 0.1))).any()


def test_it_asks_for_a_weight_of_each_reward_and_for_a_group():
    with pytest.raises(ValueError, match="weights has 1 values for 2 rewards"):
        gdpo(of_parts(), [1.0])
    with pytest.raises(ValueError, match="a group of 1"):
        gdpo(batch([[1.0], [0.0]]))


def test_a_run_with_two_rewards(tmp_path):
    functions = "reward.functions=[tests.runs.own_rewards.length,tests.algorithms.test_gdpo.even]"
    train_to_end(tmp_path / "run", 1, "algorithm=gdpo", "reward=functions", functions)


def even(completions, num_tokens, **columns):
    return [float(number % 2 == 0) for number in num_tokens]
