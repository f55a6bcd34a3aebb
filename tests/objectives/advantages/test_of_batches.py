"""Advantages that need the whole rollout batch, some of which remember: numbers by hand, and loops."""

import math

import numpy as np
import pytest
import torch
from tests.zoo import rewards as reference

from bapo_lightning.algorithms.bnpo import beta_normalised
from bapo_lightning.algorithms.dcpo import SmoothAdvantages
from bapo_lightning.algorithms.opo import length_weighted
from bapo_lightning.algorithms.reinforce_pp import whitened
from bapo_lightning.algorithms.spo import SingleStream
from bapo_lightning.objectives.advantages.reward_batch import Remembers, RewardBatch


def batch(rewards, lengths=None, problems=None, is_new=None):
    rewards = torch.as_tensor(rewards)
    lengths = torch.ones_like(rewards, dtype=torch.long) if lengths is None else torch.as_tensor(lengths)
    size = len(rewards)
    return RewardBatch(
        rewards,
        lengths,
        torch.zeros_like(rewards),
        tuple(problems or map(str, range(size))),
        tuple(is_new or [True] * size),
    )


def random_batch(seed=0, problems=None):
    generator = np.random.default_rng(seed)
    rewards = generator.integers(0, 2, (6, 5)).astype(float)
    rewards[2] = 1
    return batch(torch.from_numpy(rewards), generator.integers(1, 20, (6, 5)), problems)


def test_opo_weighs_by_length():
    # One right answer of 2 tokens, one wrong one of 6: the baseline is 1/4.
    assert length_weighted(batch([[1.0, 0.0]], [[2, 6]])).tolist() == [[0.75, -0.25]]
    assert length_weighted(batch([[0.1, 0.1, 0.1]], [[2, 6, 1]])).tolist() == [[0, 0, 0]]


def test_whitening_counts_tokens():
    # Values 1, 0, 0, 0: mean 1/4, unbiased variance 1/4.
    assert whitened(batch([[1.0, 0.0]], [[1, 3]])).tolist() == [pytest.approx([1.5, -0.5])]
    # Values 1/2, -1/2 three times: mean -1/4, variance 1/4; the group of equal rewards joins with 0.
    found = whitened(batch([[1.0, 0.0]], [[1, 3]]), "mean")
    assert found.tolist() == [pytest.approx([1.5, -0.5])]
    joined = whitened(batch([[1.0, 0.0], [1.0, 1.0]], [[1, 3], [2, 2]]), "mean")
    # Tokens 1/2, -1/2 x3, 0 x4: mean -1/8, sum of squares 1 - 8/64, over 7.
    assert joined[1].tolist() == pytest.approx([0.125 / math.sqrt(0.875 / 7)] * 2)


@pytest.mark.parametrize("baseline", ["none", "mean"])
@pytest.mark.parametrize("reward", [0.0, 0.1, 1.0])
def test_a_batch_of_equal_rewards_is_whitened_to_exact_zeros(baseline, reward):
    assert not whitened(batch(torch.full((4, 3), reward)), baseline).any()


def test_bnpo_of_two_problems():
    # p = 1/4 and 3/4: m = 1/2, v = 1/8, n = 1; alpha = beta = 7/6.
    found = beta_normalised(batch(torch.tensor([[1.0, 0, 0, 0], [1, 1, 1, 0]], dtype=torch.float64)))
    constant = math.gamma(7 / 6) ** 2 / math.gamma(7 / 3)
    factor = constant / (3 / 16) ** (1 / 6)
    assert found[0].tolist() == pytest.approx([0.75 * factor] + [-0.25 * factor] * 3)
    assert found[1].tolist() == pytest.approx([0.25 * factor] * 3 + [-0.75 * factor])


def test_bnpo_of_one_problem_or_of_equal_ones_is_not_normalised():
    assert beta_normalised(batch([[1.0, 0.0]])).tolist() == [[0.5, -0.5]]
    assert beta_normalised(batch([[1.0, 0.0], [0.0, 1.0]])).tolist() == [[0.5, -0.5], [-0.5, 0.5]]
    assert beta_normalised(batch([[1.0, 1.0], [0.0, 0.0]])).tolist() == [[0, 0], [0, 0]]
    assert beta_normalised(batch([[1.0, -1.0]]), lowest=-1).tolist() == [[0.5, -0.5]]
    with pytest.raises(ValueError, match="highest must be above lowest, got 0 and 1"):
        beta_normalised(batch([[1.0, 0.0]]), lowest=1, highest=0)


@pytest.mark.parametrize("seed", range(3))
def test_random_batches_give_what_loops_give(seed):
    made = random_batch(seed)
    rewards, lengths = made.rewards.numpy(), made.lengths.numpy()
    expected = reference.opo(rewards, lengths)
    np.testing.assert_allclose(length_weighted(made), expected, atol=1e-12)
    for baseline in ("none", "mean"):
        expected = reference.reinforce_pp(rewards, lengths, baseline == "mean")
        np.testing.assert_allclose(whitened(made, baseline), expected, atol=1e-12)
    np.testing.assert_allclose(beta_normalised(made), reference.bnpo(rewards), rtol=1e-9)


@pytest.mark.parametrize(
    "advantages",
    [length_weighted, beta_normalised, SmoothAdvantages(), lambda made: whitened(made, "mean")],
)
def test_a_group_of_one_is_refused_by_what_compares(advantages):
    with pytest.raises(ValueError, match="a group of 1"):
        advantages(batch([[1.0], [0.0]]))


def test_smooth_advantages_of_two_visits():
    advantages = SmoothAdvantages()
    first = advantages(batch([[1.0, 0.0]], problems=["p"]))
    assert first.tolist() == [pytest.approx([0.5**0.5, -(0.5**0.5)])]  # the deviation is sqrt 1/2
    # All right: z_new = 0. Means 1/2 and 1, variances 1/2 and 0: 3/4, and 1/4 + 1/16.
    whole = 0.25 / math.sqrt(5 / 16)
    assert advantages(batch([[1.0, 1.0]], problems=["p"])).tolist() == [pytest.approx([whole / 2] * 2)]
    assert advantages(batch([[1.0, 1.0]], problems=["q"])).tolist() == [[0, 0]]


def test_smooth_advantages_of_many_visits_are_those_of_all_groups_pooled_anew():
    advantages, by_loops = SmoothAdvantages(), [reference.Dcpo() for _ in range(6)]
    for seed in range(6):
        made = random_batch(seed)
        expected = [own(row) for own, row in zip(by_loops, made.rewards.numpy(), strict=True)]
        np.testing.assert_allclose(advantages(made), expected, atol=1e-9)


def test_single_stream_of_three_answers_to_two_problems():
    advantages = SingleStream(keep=0.5)
    # Both trackers begin at 1/2: gains 1/2 and -1/2, deviation sqrt 1/2.
    found = advantages(batch([[1.0], [0.0]], problems=["p", "q"]))
    assert found.flatten().tolist() == pytest.approx([0.5**0.5, -(0.5**0.5)])
    assert advantages.state_dict() == {"p": [1.25, 0.25], "q": [0.25, 1.25]}
    # v is 5/6 and 1/6: gains 1/6 and -1/6.
    found = advantages(batch([[1.0], [0.0]], problems=["p", "q"]))
    assert found.flatten().tolist() == pytest.approx([0.5**0.5, -(0.5**0.5)])
    right, wrong = advantages.state_dict()["q"]
    assert (right, wrong) == (0.125, 1.625)


@pytest.mark.parametrize("size", [1, 3])
def test_single_stream_gives_what_loops_over_the_past_give(size):
    generator, advantages = np.random.default_rng(0), SingleStream()
    past: list[list[float]] = [[], [], [], []]
    for _ in range(5):
        rewards = generator.integers(0, 2, (4, size)).astype(float)
        rewards[0] = 1 - rewards[1]
        found = advantages(batch(torch.from_numpy(rewards)))
        np.testing.assert_allclose(found, reference.spo(past, rewards), atol=1e-12)
        for own, row in zip(past, rewards, strict=True):
            own += row.tolist()


def test_single_stream_gives_zeros_where_nothing_differs():
    assert SingleStream()(batch([[1.0], [1.0]])).tolist() == [[0], [0]]
    assert SingleStream()(batch([[1.0]])).tolist() == [[0]]


@pytest.mark.parametrize("make", [SmoothAdvantages, SingleStream])
def test_a_memory_goes_on_where_it_was_saved_and_learns_from_new_groups_only(make, tmp_path):
    whole, begun, resumed = make(), make(), make()
    assert isinstance(whole, Remembers)
    for advantages in (whole, begun):
        advantages(random_batch(0))
    torch.save(begun.state_dict(), tmp_path / "state")
    resumed.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    before = resumed.state_dict()
    again = batch(random_batch(3).rewards, is_new=[False] * 6)
    assert resumed(again).any() and resumed.state_dict() == before
    assert torch.equal(resumed(random_batch(1)), whole(random_batch(1)))
    assert resumed.state_dict() == whole.state_dict() != before
