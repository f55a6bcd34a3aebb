from itertools import combinations

import pytest

from bapo_lightning.evaluation import avg_at_k, maj_at_k, pass_at_k


def test_avg_is_the_mean():
    assert avg_at_k([True, False, False, True]) == 0.5
    with pytest.raises(ValueError, match="at least one sample"):
        avg_at_k([])


@pytest.mark.parametrize(("samples", "correct", "k"), [(4, 1, 2), (8, 3, 4), (5, 0, 3), (5, 5, 1), (6, 2, 6)])
def test_pass_at_k_is_the_share_of_k_subsets_with_a_correct_sample(samples, correct, k):
    subsets = list(combinations([True] * correct + [False] * (samples - correct), k))
    assert pass_at_k(samples, correct, k) == pytest.approx(
        sum(any(subset) for subset in subsets) / len(subsets)
    )


def test_pass_at_k_refuses_impossible_counts():
    with pytest.raises(ValueError, match=r"num_correct must be in 0..num_samples"):
        pass_at_k(4, 5, 1)
    with pytest.raises(ValueError, match=r"k must be in 1..num_samples"):
        pass_at_k(4, 2, 5)


def test_the_majority_answer_counts_and_ties_share():
    assert maj_at_k(["7", "7", "8"], [True, True, False]) == 1.0
    assert maj_at_k(["7", "8"], [True, False]) == 0.5
    assert maj_at_k(["", "", "8"], [False, False, True]) == 1.0
    assert maj_at_k(["", ""], [False, False]) == 0.0
    with pytest.raises(ValueError, match="one verdict per answer"):
        maj_at_k(["7"], [])


def test_an_answer_is_right_whichever_of_its_samples_was_judged_first():
    assert (
        maj_at_k(["7", "7", "8"], [True, False, False])
        == maj_at_k(["7", "7", "8"], [False, True, False])
        == 1.0
    )
