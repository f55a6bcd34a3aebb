"""Student intervals and paired tests against tabled and exact values."""

import math

import pytest

from bapo_lightning.report.intervals import (
    Interval,
    holm,
    mean_interval,
    paired_difference,
    paired_p_value,
    shown_interval,
    t_quantile,
)


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [
        (1, 12.7062), (2, 4.3027), (4, 2.7764), (9, 2.2622), (30, 2.0423), (31, 2.0395), (60, 2.0003),
        (1000, 1.9623),
    ],
)  # fmt: skip
def test_t_quantiles_are_those_of_the_tables(degrees, quantile):
    assert t_quantile(degrees) == pytest.approx(quantile, abs=1e-4)


def test_no_degree_of_freedom_is_refused():
    with pytest.raises(ValueError, match="at least 1 degree of freedom"):
        t_quantile(0)


def test_the_interval_of_five_values_of_one_and_of_none():
    # s = sqrt(2.5), t(4) = 2.7764451051977987: half-width t * sqrt(2.5 / 5)
    interval = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (interval.mean, interval.count, interval.excludes_zero) == (3.0, 5, True)
    assert interval.half_width == pytest.approx(2.7764451051977987 * 0.5**0.5, abs=1e-12)
    assert mean_interval([0.7]) == Interval(0.7, None, 1) and not Interval(0.7, None, 1).excludes_zero
    assert mean_interval([]) is None


def test_paired_differences_use_only_common_seeds():
    # differences 1, 2, 3: s = 1, t(2) = 0.95 sqrt(2 / 0.0975), half-width t / sqrt(3)
    values, reference = {0: 11.0, 1: 22.0, 2: 33.0, 7: 99.0}, {0: 10.0, 1: 20.0, 2: 30.0, 8: 1.0}
    interval = paired_difference(values, reference)
    assert (interval.mean, interval.count, interval.excludes_zero) == (2.0, 3, False)
    assert interval.half_width == pytest.approx(0.95 * (2 / 0.0975 / 3) ** 0.5, abs=1e-12)
    assert paired_difference({0: 1.0}, {1: 1.0}) is None
    # t = 2 sqrt(3), 2 degrees: p = 1 - t / sqrt(t^2 + 2)
    assert paired_p_value(values, reference) == pytest.approx(1 - math.sqrt(12 / 14))
    assert paired_p_value({0: 1.0}, {0: 0.0}) is None
    assert paired_p_value({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0}) == 1.0


# Student's t of n values 0 +- 1 shifted to a mean whose t is given: tabled two-sided probabilities.
@pytest.mark.parametrize(
    ("t", "degrees", "probability"),
    [
        (1.0, 1, 0.5), (2.0, 2, 0.183503), (2.0, 3, 0.139326), (2.5, 4, 0.066767), (3.0, 9, 0.014956),
        (2.0, 30, 0.054625), (0.0, 5, 1.0),
    ],
)  # fmt: skip
def test_p_values_are_those_of_the_tables(t, degrees, probability):
    count = degrees + 1
    spread = [seed - degrees / 2 for seed in range(count)]  # of mean 0
    error = math.sqrt(math.fsum(value**2 for value in spread) / degrees / count)
    zeros = dict.fromkeys(range(count), 0.0)
    for sign in (1, -1):
        values = {seed: value + sign * t * error for seed, value in enumerate(spread)}
        assert paired_p_value(values, zeros) == pytest.approx(probability, abs=1e-6)


@pytest.mark.parametrize("shift", [0.1, 0.5, 0.9, 1.1, 1.2, 1.3, 2.0])
def test_p_is_below_5_percent_exactly_where_the_interval_excludes_zero(shift):
    values, reference = {0: shift, 1: shift + 0.5, 2: shift - 0.5}, dict.fromkeys(range(3), 0.0)
    assert (paired_p_value(values, reference) < 0.05) == paired_difference(values, reference).excludes_zero


def test_holm_multiplies_the_least_p_by_their_number_and_keeps_the_order():
    adjusted = holm([0.04, None, 0.01, 0.03])
    assert adjusted == [pytest.approx(0.06), None, pytest.approx(0.03), pytest.approx(0.06)]
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_on_a_logarithmic_axis_an_interval_is_of_logarithms_and_above_zero():
    values = [0.1, 1.0, 10.0]  # logarithms 0 +- log(10): half-width t(2) log(10) / sqrt(3)
    mean, low, high = shown_interval(values, logarithmic=True)
    assert mean == pytest.approx(1.0) and low == pytest.approx(1 / high)
    assert high == pytest.approx(10 ** (4.302653 / math.sqrt(3)), rel=1e-5)
    assert shown_interval(values)[1] < 0, "on a linear axis it may go below zero"


def test_an_interval_ends_with_what_the_quantity_can_be():
    assert shown_interval([0.0, 1.0, 1.0], limits=(0.0, 1.0)) == (pytest.approx(2 / 3), 0.0, 1.0)
    assert shown_interval([0.3], limits=(0.0, 1.0)) == (0.3, 0.3, 0.3)
    assert shown_interval([]) is None
