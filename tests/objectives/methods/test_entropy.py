"""Objectives that look at the entropy, by hand: STEER, 80/20, Clip-Cov, KL-Cov, and the entropy bonus."""

from math import exp, log

import pytest
import torch
from tests.token_tables import table

from bapo_lightning.algorithms.clip_cov import clip_cov, kept
from bapo_lightning.algorithms.entropy_bonus import EntropyBonus
from bapo_lightning.algorithms.kl_cov import kl_cov, picked
from bapo_lightning.algorithms.steer import steer, weight_by_entropy_change
from bapo_lightning.algorithms.top_entropy import among_highest, top_entropy
from bapo_lightning.objectives.token_table import needs_entropy_gradient


def exact(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_steer_weighs_least_what_would_move_the_entropy_most():
    # |A r (1 - p)(log p + H)|: 1 * 2 * 0.5 * |log 0.5 + 0.1| = 0.593, none without advantage, half of it
    made = table(
        exact(1, 0, -0.5), exact(2, 2, 2), logp=log(0.5), behaviour_logp=log(0.25), entropy=0.1, high=9.0
    )
    weights = weight_by_entropy_change(made)
    assert weights.tolist() == pytest.approx([0.8, 1.0, 0.8**0.5])
    assert weight_by_entropy_change(made, most=1.2, shape="linear").tolist() == pytest.approx([0.8, 1.2, 1.0])
    assert steer(made.with_statistic(weights)).tolist() == pytest.approx([1.6, 0, -(0.8**0.5)])


def test_steer_spares_tokens_that_hardly_move_the_entropy():
    made = table(exact(1, 1), logp=log(0.5), behaviour_logp=log(0.5), entropy=-log(0.5) + 0.01)
    assert weight_by_entropy_change(made).tolist() == pytest.approx([0.8**0.25] * 2), "0.005 of 0.02"
    linear = weight_by_entropy_change(made, most=1.2, shape="linear")
    assert linear.tolist() == pytest.approx([1.0] * 2), "all alike"


def test_a_row_that_stands_for_no_token_does_not_count():
    made = table(exact(1, 9), behaviour_logp=exact(log(0.5), log(0.1)), entropy=0.1, count=exact(1, 0))
    assert float(weight_by_entropy_change(made)[0]) == pytest.approx(0.8)
    assert among_highest(table(exact(1, 1), entropy=exact(1, 9), count=exact(1, 0)), 0.5)[0] == 1


@pytest.mark.parametrize(("number", "expected"), [(1, 1), (5, 1), (6, 2), (10, 2), (11, 3), (35, 7)])
def test_a_fifth_of_the_tokens_is_rounded_up(number, expected):
    entropy = torch.rand(number, generator=torch.Generator().manual_seed(0))
    keeps = among_highest(table(torch.ones(number), entropy=entropy))
    assert keeps.sum() == expected
    assert set(entropy[keeps > 0].tolist()) == set(entropy.sort().values[-expected:].tolist())


def test_tokens_as_uncertain_as_the_last_one_belong_to_the_highest():
    assert among_highest(table(torch.ones(5), entropy=exact(1, 2, 0, 2, 1))).tolist() == [0, 1, 0, 1, 0]
    made = table(exact(1, 1, -1, -1), exact(2, 1, 2, 1), high=1.2, statistic=exact(1, 0, 1, 0))
    assert top_entropy(made).tolist() == pytest.approx([1.2, 0, -2, 0])


def covering():
    """Covariances 3, 0.5, 3 and 0.5, without the last row, which stands for no token."""
    return {
        "advantages": exact(2, 1, -2, -1, 9),
        "behaviour_logp": exact(-1.0, -2.0, -4.0, -3.0, -99.0),
        "count": exact(1, 1, 1, 1, 0),
    }


def test_clip_cov_draws_one_token_at_least_among_those_of_high_covariance():
    drawn = {tuple(kept(table(**covering(), age=age, low=0.8, high=1.2)).tolist()) for age in range(20)}
    assert drawn == {(0, 1, 1, 1, 1), (1, 1, 0, 1, 1)}, "either of two, in different updates"
    assert kept(table(**covering(), high=1.2), share=0.5).tolist() == [0, 1, 0, 1, 1]
    assert kept(table(**covering(), high=1.2), share=1.0, low=0.4).tolist() == [0, 0, 0, 0, 1]
    assert kept(table(**covering(), high=1.2), share=1.0, low=3.5).tolist() == [1] * 5


def test_clip_cov_draws_none_that_is_clipped_already():
    made = table(**covering(), logp=exact(-0.5, -2.0, -4.0, -3.0, -99.0), low=0.8, high=1.2)
    assert kept(made, share=0.5).tolist() == [1, 1, 0, 1, 1]
    found = clip_cov(made.with_statistic(kept(made, share=0.5)))
    assert found.tolist() == pytest.approx([2.4, 1, 0, -1, 9])


def test_kl_cov_charges_the_tokens_of_highest_covariance():
    columns = covering() | {"advantages": exact(2, 1, -2, -3, 9)}  # covariances 3.75, 0.75, 2.25 and 1.25
    assert picked(table(**columns)).tolist() == [1, 0, 0, 0, 0]
    assert picked(table(**columns), share=0.6).tolist() == [1, 0, 1, 0, 0]
    made = table(exact(2, 2, -1), exact(0.1, -0.1, 0.1).exp(), statistic=exact(1, 1, 0))
    expected = [2 * exp(0.1) - 0.05, 2 * exp(-0.1) - 0.05, -exp(0.1)]
    assert kl_cov(made, coefficient=0.5).tolist() == pytest.approx(expected)


def test_the_entropy_bonus_adds_to_the_clipped_surrogate_and_asks_for_a_gradient():
    made = table(exact(1, -1), exact(2, 2), entropy=exact(3, 4), high=1.2, statistic=0.5)
    assert EntropyBonus()(made).tolist() == pytest.approx([1.2 + 1.5, -2 + 2])
    assert EntropyBonus(dual_clip=1.5)(made).tolist() == pytest.approx([1.2 + 1.5, -1.5 + 2])
    assert needs_entropy_gradient(EntropyBonus()) and not needs_entropy_gradient(top_entropy)
