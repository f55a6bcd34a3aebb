"""Student intervals against tabled and exact values."""

import math

import pytest

from bapo_lightning.report.intervals import (
    Interval,
    mean_interval,
    paired_difference,
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


def test_the_interval_of_five_values():
    # s = sqrt(2.5), t(4) = 2.7764451051977987: half-width t * sqrt(2.5 / 5)
    interval = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert interval is not None
    assert (interval.mean, interval.count) == (3.0, 5)
    assert interval.half_width == pytest.approx(2.7764451051977987 * 0.5**0.5, abs=1e-12)
    assert interval.excludes_zero


def test_one_value_has_a_mean_but_no_interval():
    assert mean_interval([0.7]) == Interval(0.7, None, 1)
    assert not Interval(0.7, None, 1).excludes_zero


def test_no_value_has_no_mean():
    assert mean_interval([]) is None


def test_paired_differences_use_only_common_seeds():
    # differences 1, 2, 3: s = 1, t(2) = 0.95 sqrt(2 / 0.0975), half-width t / sqrt(3)
    interval = paired_difference({0: 11.0, 1: 22.0, 2: 33.0, 7: 99.0}, {0: 10.0, 1: 20.0, 2: 30.0, 8: 1.0})
    assert interval is not None
    assert (interval.mean, interval.count) == (2.0, 3)
    assert interval.half_width == pytest.approx(0.95 * (2 / 0.0975 / 3) ** 0.5, abs=1e-12)
    assert not interval.excludes_zero


def test_without_a_common_seed_there_is_no_difference():
    assert paired_difference({0: 1.0}, {1: 1.0}) is None


def test_on_a_logarithmic_axis_an_interval_is_of_logarithms_and_above_zero():
    values = [0.1, 1.0, 10.0]  # logarithms 0 +- log(10): half-width t(2) log(10) / sqrt(3)
    shown = shown_interval(values, logarithmic=True)
    assert shown is not None and shown[0] == pytest.approx(1.0)
    assert shown[2] == pytest.approx(10 ** (4.302653 / math.sqrt(3)), rel=1e-5)
    assert shown[1] == pytest.approx(1 / shown[2])
    plain = shown_interval(values)
    assert plain is not None and plain[1] < 0, "on a linear axis it may go below zero"


def test_an_interval_ends_with_what_the_quantity_can_be():
    shares = shown_interval([0.0, 1.0, 1.0], limits=(0.0, 1.0))
    assert shares == (pytest.approx(2 / 3), 0.0, 1.0)
    assert shown_interval([0.3], limits=(0.0, 1.0)) == (0.3, 0.3, 0.3)
    assert shown_interval([]) is None
