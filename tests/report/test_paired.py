"""What a paired difference may be called, by hand and by tabled values."""

import math

import pytest

from bapo_lightning.report.intervals import Interval, mean_interval
from bapo_lightning.report.paired import (
    EQUAL,
    LESS,
    MORE,
    NONE,
    UNRESOLVED,
    UNTESTED,
    holm,
    paired_difference,
    paired_p_value,
    verdict_of,
)

STEP = 1 / 200  # of the accuracy of one answer to each of 200 problems


def judged(differences, resolution=0.0, within=0.0, tests=1):
    """The verdict on differences to a reference, one test of so many."""
    reference = {seed: 0.3 + 0.01 * seed for seed in range(len(differences))}
    values = {seed: reference[seed] + value for seed, value in enumerate(differences)}
    p = paired_p_value(values, reference, resolution)
    (adjusted, *_) = holm([p, *[1.0] * (tests - 1)])
    return verdict_of(paired_difference(values, reference, resolution), adjusted, within)


def test_paired_differences_use_only_common_seeds():
    # differences 1, 2, 3: s = 1, t(2) = 0.95 sqrt(2 / 0.0975), half-width t / sqrt(3)
    values, reference = {0: 11.0, 1: 22.0, 2: 33.0, 7: 99.0}, {0: 10.0, 1: 20.0, 2: 30.0, 8: 1.0}
    interval = paired_difference(values, reference)
    assert (interval.mean, interval.count, interval.excludes_zero) == (2.0, 3, False)
    assert interval.half_width == pytest.approx(0.95 * (2 / 0.0975 / 3) ** 0.5, abs=1e-12)
    assert paired_difference({0: 1.0}, {1: 1.0}) is None
    # t = 2 sqrt(3), 2 degrees: p = 1 - t / sqrt(t^2 + 2)
    assert paired_p_value(values, reference) == pytest.approx(1 - math.sqrt(12 / 14))


# Student's t of n values 0 +- 1 shifted to a mean whose t is given: tabled two-sided probabilities.
@pytest.mark.parametrize(("t", "degrees", "probability"), [
    (2.0, 2, 0.183503), (2.0, 3, 0.139326), (2.5, 4, 0.066767), (3.0, 9, 0.014956), (2.0, 30, 0.054625),
    (0.0, 5, 1.0),
])  # fmt: skip
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


@pytest.mark.parametrize(("differences", "options", "verdict"), [
    ([-STEP] * 2, {}, UNTESTED),
    ([0.1, 0.2], {}, UNTESTED),
    ([-STEP] * 8, {}, UNTESTED),
    ([0.0] * 8, {}, UNTESTED),
    ([0.0] * 8, {"within": 0.01}, EQUAL),
    ([-STEP] * 8, {"within": 0.01}, UNTESTED),
    ([0.1, 0.11, 0.12], {}, MORE),
    ([-0.1, -0.11, -0.12], {}, LESS),
    ([0.1, 0.11, 0.12], {"tests": 60}, UNRESOLVED),
    ([0.1, -0.11, 0.12], {}, UNRESOLVED),
    ([0.001, 0.0011, 0.0012], {}, MORE),
    ([0.001, 0.0011, 0.0012], {"within": 0.01}, EQUAL),
    ([-0.001, -0.0011, -0.0012], {"within": 0.01}, EQUAL),
    ([0.009, 0.0101, 0.012], {"within": 0.01}, MORE),
    # one answer more or less in one of eight seeds: the spread is below that of two roundings
    ([-2 * STEP] * 7 + [-STEP], {"resolution": STEP}, LESS),
    ([STEP] * 7 + [0.0], {}, MORE),
    ([0.0] * 5 + [STEP] * 3, {"resolution": STEP}, UNRESOLVED),
    ([], {}, NONE),
])  # fmt: skip
def test_a_verdict_needs_seeds_a_spread_a_test_and_a_size(differences, options, verdict):
    assert judged(differences, **options) == verdict


@pytest.mark.parametrize("differences", [[STEP] * 3, [STEP] * 7 + [2 * STEP], [0.0] * 4])
def test_the_interval_is_never_narrower_than_the_resolution_makes_it(differences):
    zeros, values = dict.fromkeys(range(len(differences)), 0.0), dict(enumerate(differences))
    (coarse, fine) = (paired_difference(values, zeros, step) for step in (STEP, 0.0))
    by_hand = {3: 4.302653, 4: 3.182446, 8: 2.364624}[len(values)] * STEP / math.sqrt(6 * len(values))
    one_side, plain = mean_interval(differences, STEP), mean_interval(differences)
    assert one_side.half_width == pytest.approx(max(by_hand / math.sqrt(2), plain.half_width), rel=1e-6)
    assert coarse.half_width == pytest.approx(max(by_hand, fine.half_width), rel=1e-6)


def test_differences_that_vary_by_rounding_alone_are_equal():
    values, reference = {0: 0.3 + 0.1, 1: 0.7 + 0.1, 2: 0.2 + 0.1}, {0: 0.3, 1: 0.7, 2: 0.2}
    assert len({values[seed] - reference[seed] for seed in values}) > 1
    assert paired_p_value(values, reference) is None
    assert paired_difference(values, reference) == Interval(pytest.approx(0.1), 0.0, 3)
