"""Student intervals and paired tests against tabled and exact values."""

import math

import pytest

from bapo_lightning.report.intervals import (
    Interval,
    interval_on_axis,
    mean_interval,
    ratio_interval,
    t_quantile,
)


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


def test_a_ratio_has_the_noise_of_both_of_its_means():
    # Differences 1 +- 0.5 over 2 +- 0.5 that vary together: (1 - t^2/3 * 0.25 ...), solved by hand
    tops, bottoms = [0.5, 1.0, 1.5], [1.5, 2.0, 2.5]
    ratio = ratio_interval(tops, bottoms)
    scale = t_quantile(2) ** 2 / 3 * 0.25  # t^2 s^2 / n, alike for both and their covariance
    a, b, c = 4 - scale, 2 - scale, 1 - scale
    assert ratio.value == 0.5
    root = (b * b - a * c) ** 0.5
    assert (ratio.lower, ratio.upper) == pytest.approx(((b - root) / a, (b + root) / a))
    # each end is a ratio at which the paired differences just cease to differ from zero
    for end in (ratio.lower, ratio.upper):
        left = mean_interval([top - end * bottom for top, bottom in zip(tops, bottoms, strict=True)])
        assert abs(left.mean) == pytest.approx(left.half_width)


def test_the_ratio_of_values_to_themselves_is_one_for_certain():
    ratio = ratio_interval([0.1, 0.2, 0.18], [0.1, 0.2, 0.18])
    assert (ratio.value, ratio.lower, ratio.upper) == pytest.approx((1, 1, 1))
    assert ratio.text(1) == "1.0 (1.0 to 1.0)"


@pytest.mark.parametrize("bottoms", [[1.0, 2.0], [-1.0, 2.0, 0.5]])
def test_a_ratio_has_no_interval_where_the_denominator_may_be_zero(bottoms):
    assert ratio_interval([1.0] * len(bottoms), bottoms) is None
