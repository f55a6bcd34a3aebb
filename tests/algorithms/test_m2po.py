from math import exp, inf, sqrt

import pytest
import torch
from tests.algorithms.by_hand import exact, prepared
from tests.token_tables import table

from bapo_lightning.algorithms.m2po import M2PO, largest_log_ratio


def moved(*log_ratio, advantage=None, **columns):
    advantage = torch.ones(len(log_ratio), dtype=torch.float64) if advantage is None else advantage
    return table(advantage, exact(*log_ratio).exp(), **columns)


def test_the_limit_caps_the_second_moment_of_the_tokens_that_move_away():
    # (0.01 + 0.04 + 0.07) / 3 = 0.04; the token that moves back, and the one without advantage, do not count.
    made = moved(0.1, 0.6, -0.2, -3.0, 5.0, advantage=exact(1, 1, -1, 1, 0))
    assert float(largest_log_ratio(made)) == pytest.approx(sqrt(0.07))


def test_a_row_counts_as_often_as_it_stands_for_tokens():
    one_each = largest_log_ratio(moved(0.1, 0.1, 0.6, 0.3))
    twice = largest_log_ratio(moved(0.1, 0.6, 0.3, 9.0, count=exact(2, 1, 1, 0)))
    assert float(twice) == pytest.approx(float(one_each))


@pytest.mark.parametrize("reading", ["clamp", "mask"])
def test_within_the_budget_there_is_no_limit(reading):
    assert float(largest_log_ratio(moved(0.2, -0.2, 0.1), reading=reading)) == inf
    assert float(largest_log_ratio(moved(-3.0, 3.0, advantage=exact(1, -1)), reading=reading)) == inf


@pytest.mark.parametrize(("log_ratios", "clamped"), [
    ([0.1, 0.6, -0.2], [0.1, sqrt(0.07), -0.2]),
    ([0.25, 0.25, 0.30], [0.2, 0.2, 0.2]),  # all are clipped, below the authors' unused floor of 1.5
    ([1.0, 0.0, *[0.01] * 40], [1.0, 0.0, *[0.01] * 40]),
])  # fmt: skip
def test_bounds_are_those_of_the_limit_alone(log_ratios, clamped):
    signs = [-1 if value < 0 else 1 for value in log_ratios]
    made = moved(*log_ratios, advantage=exact(*signs), low=0.7, high=1.5)
    found = M2PO()(prepared(M2PO(), made)).tolist()
    assert found == pytest.approx([sign * exp(value) for sign, value in zip(signs, clamped, strict=True)])


def test_the_mask_leaves_out_the_largest_until_the_others_fit():
    # 0.01, 0.025 and 0.137 are the means of the smallest, of two and of all three
    made = moved(0.6, 0.1, -0.2, -3.0, advantage=exact(1, 1, -1, 1), low=0.7, high=1.5)
    masking = M2PO(reading="mask")
    made = prepared(masking, made)
    assert made["limit"].tolist() == pytest.approx([0.4] * 4), "halfway between 0.2 and 0.6"
    assert masking(made).tolist() == pytest.approx([0, exp(0.1), -exp(-0.2), exp(-3.0)])


def test_equal_tokens_go_together_and_all_go_where_none_fits():
    made = moved(0.1, 0.3, 0.3, 0.3)
    assert float(largest_log_ratio(made, reading="mask")) == pytest.approx(0.2), "0.1 and one 0.3 would fit"
    assert float(largest_log_ratio(moved(1.0, 2.0), reading="mask")) == pytest.approx(0.5)
