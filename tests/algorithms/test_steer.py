from math import log

import pytest
from tests.algorithms.by_hand import exact, prepared
from tests.token_tables import table

from bapo_lightning.algorithms.steer import STEER, weight_by_entropy_change


def test_what_would_move_the_entropy_most_weighs_least():
    # |A r (1 - p)(log p + H)|: 1 * 2 * 0.5 * |log 0.5 + 0.1| = 0.593, none without advantage, half of it
    own = {"logp": log(0.5), "behaviour_logp": log(0.25), "entropy": 0.1, "high": 9.0}
    made = table(exact(1, 0, -0.5), exact(2, 2, 2), **own)
    assert weight_by_entropy_change(made).tolist() == pytest.approx([0.8, 1.0, 0.8**0.5])
    assert weight_by_entropy_change(made, most=1.2, shape="linear").tolist() == pytest.approx([0.8, 1.2, 1.0])
    assert STEER()(prepared(STEER(), made)).tolist() == pytest.approx([1.6, 0, -(0.8**0.5)])
    linear = STEER(least=0.7, most=1.3, shape="linear", dual_clip=1.5)
    assert linear(prepared(linear, made)).tolist() == pytest.approx([1.4, 0, -0.75])


def test_tokens_that_hardly_move_the_entropy_are_spared():
    made = table(exact(1, 1), logp=log(0.5), behaviour_logp=log(0.5), entropy=-log(0.5) + 0.01)
    assert weight_by_entropy_change(made).tolist() == pytest.approx([0.8**0.25] * 2), "0.005 of 0.02"
    linear = weight_by_entropy_change(made, most=1.2, shape="linear")
    assert linear.tolist() == pytest.approx([1.0] * 2), "all alike"


def test_probabilities_below_the_authors_least_one_count_as_it():
    # q = 1e-12 counts as 1e-8: omega = 1e-8 / 1e-8 * (log 1e-8 + 10) with p = 1e-10, and 2 * 0.5 * 0.6 beside
    made = table(
        exact(1, 1), logp=exact(log(1e-10), log(0.5)), behaviour_logp=exact(log(1e-12), log(0.25)),
        entropy=10.0,
    )  # fmt: skip
    omega = [abs(log(1e-8) + 10), abs(log(0.5) + 10)]
    expected = [0.8 ** (each / max(omega)) for each in omega]
    assert weight_by_entropy_change(made).tolist() == pytest.approx(expected)


def test_a_row_that_stands_for_no_token_does_not_count():
    made = table(exact(1, 9), behaviour_logp=exact(log(0.5), log(0.1)), entropy=0.1, count=exact(1, 0))
    assert float(weight_by_entropy_change(made)[0]) == pytest.approx(0.8)
