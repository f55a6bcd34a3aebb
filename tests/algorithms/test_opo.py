import pytest
from tests.algorithms.reward_batches import batch

from bapo_lightning.algorithms.opo import length_weighted


def test_the_baseline_weighs_by_length():
    # One right answer of 2 tokens, one wrong one of 6: the baseline is 1/4.
    assert length_weighted(batch([[1.0, 0.0]], [[2, 6]])).tolist() == [[0.75, -0.25]]
    assert length_weighted(batch([[0.1, 0.1, 0.1]], [[2, 6, 1]])).tolist() == [[0, 0, 0]]


def test_a_group_of_one_is_refused():
    with pytest.raises(ValueError, match="a group of 1"):
        length_weighted(batch([[1.0], [0.0]]))
