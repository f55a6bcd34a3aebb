import numpy as np
import pytest
import torch
from tests.algorithms.reward_batches import batch, check_memory
from tests.zoo import rewards as reference

from bapo_lightning.algorithms.spo import SingleStream


def test_three_answers_to_two_problems():
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
def test_it_gives_what_loops_over_the_past_give(size):
    generator, advantages = np.random.default_rng(0), SingleStream()
    past: list[list[float]] = [[], [], [], []]
    for _ in range(5):
        rewards = generator.integers(0, 2, (4, size)).astype(float)
        rewards[0] = 1 - rewards[1]
        found = advantages(batch(torch.from_numpy(rewards)))
        np.testing.assert_allclose(found, reference.spo(past, rewards), atol=1e-12)
        for own, row in zip(past, rewards, strict=True):
            own += row.tolist()


def test_it_gives_zeros_where_nothing_differs():
    assert SingleStream()(batch([[1.0], [1.0]])).tolist() == [[0], [0]]
    assert SingleStream()(batch([[1.0]])).tolist() == [[0]]


def test_the_memory_goes_on_where_it_was_saved_and_learns_from_new_groups_only(tmp_path):
    check_memory(SingleStream, tmp_path)
