"""Student intervals and paired tests against tabled and exact values."""

import math

import pytest

from bapo_lightning.report.intervals import Interval, interval_on_axis, mean_interval, t_quantile


@pytest.mark.parametrize(("degrees", "quantile"), [
    (1, 12.7062), (2, 4.3027), (4, 2.7764), (9, 2.2622), (30, 2.0423), (31, 2.0395), (60, 2.0003),
    (1000, 1.9623),
])  # fmt: skip
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


def test_on_a_logarithmic_axis_an_interval_is_of_logarithms_and_above_zero():
    values = [0.1, 1.0, 10.0]  # logarithms 0 +- log(10): half-width t(2) log(10) / sqrt(3)
    mean, low, high = interval_on_axis(values, logarithmic=True)
    assert mean == pytest.approx(1.0) and low == pytest.approx(1 / high)
    assert high == pytest.approx(10 ** (4.302653 / math.sqrt(3)), rel=1e-5)
    assert interval_on_axis(values)[1] < 0, "on a linear axis it may go below zero"


def test_an_interval_ends_with_what_the_quantity_can_be():
    assert interval_on_axis([0.0, 1.0, 1.0], limits=(0.0, 1.0)) == (pytest.approx(2 / 3), 0.0, 1.0)
    assert interval_on_axis([0.3], limits=(0.0, 1.0)) == (0.3, 0.3, 0.3)
    assert interval_on_axis([]) is None
