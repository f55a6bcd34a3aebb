"""Intervals of ratios against exact values."""

import pytest

from bapo_lightning.report.intervals import mean_interval, t_quantile
from studies.map.ratios import ratio_interval


def test_a_ratio_has_the_noise_of_both_of_its_means():
    # Differences 1 +- 0.5 over 2 +- 0.5 that vary together: (1 - t^2/3 * 0.25 ...), solved by hand
    tops, bottoms = [0.5, 1.0, 1.5], [1.5, 2.0, 2.5]
    ratio = ratio_interval(tops, bottoms)
    scale = t_quantile(2) ** 2 / 3 * 0.25  # t^2 s^2 / n, alike for both and their covariance
    a, b, c = 4 - scale, 2 - scale, 1 - scale
    assert ratio.value == 0.5
    assert (ratio.lower, ratio.upper) == pytest.approx(
        ((b - (b * b - a * c) ** 0.5) / a, (b + (b * b - a * c) ** 0.5) / a)
    )
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
