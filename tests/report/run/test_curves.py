"""Moving averages and thinned curves: the same numbers as by hand, and work in proportion to the values."""

import random
from statistics import fmean, median

import pytest

from bapo_lightning.report.run.curves import (
    even_places,
    extremes_around,
    kept_places,
    moving_average,
    moving_median,
    window_means,
    window_of,
)

SIZES = [(count, window) for count in (1, 2, 5, 30, 31, 100) for window in (1, 2, 3, 7, 30, 33)]


def by_hand(values, window, middle):
    half = window // 2
    return [middle(values[max(0, at - half) : at - half + window]) for at in range(len(values))]


@pytest.mark.parametrize(("count", "window"), SIZES)
def test_averages_and_medians_are_those_of_each_window(count, window):
    noise = random.Random(f"{count} {window}")
    values = [noise.choice([noise.gauss(0, 1), 1.0, 1e-7]) for _ in range(count)]
    assert moving_average(values, window) == pytest.approx(by_hand(values, window, fmean))
    assert moving_median(values, window) == pytest.approx(by_hand(values, window, median))
    if window <= count:
        whole = [fmean(values[at : at + window]) for at in range(count - window + 1)]
        assert window_means(values, window).tolist() == pytest.approx(whole)


def test_a_spike_leaves_no_rounding_in_windows_without_it():
    values = [1e-7] * 50 + [1e30] + [1e-7] * 49
    assert moving_average(values, 10)[60:] == pytest.approx([1e-7] * 40)


class Counted(list):
    """A list that counts the values that slices of it have."""

    num_read = 0

    def __getitem__(self, key):
        found = super().__getitem__(key)
        if isinstance(key, slice):
            self.num_read += len(found)
        return found


@pytest.mark.parametrize("smooth", [moving_average, moving_median])
def test_smoothing_reads_each_value_a_few_times_however_long_the_window_is(smooth):
    values = Counted(float(step % 7) for step in range(6000))
    smooth(values, 400)
    assert values.num_read <= 3 * len(values)


@pytest.mark.parametrize("count", [0, 1, 4, 19, 20, 21, 100, 12345])
def test_a_thinned_curve_keeps_the_extremes_of_each_stretch(count):
    noise = random.Random(count)
    values = [noise.gauss(0, 1) for _ in range(count)]
    places = kept_places(values, 20)
    assert len(places) <= 20 and places == sorted({*places})
    assert {0, count - 1} <= {*places} or not count
    shown = [values[place] for place in places]
    assert (min(shown), max(shown)) == (min(values), max(values)) if count else not shown
    even = even_places(count, 20)
    lower, upper = extremes_around(values, even)
    assert len(even) == len(lower) == len(upper) <= 20
    if count:
        assert (min(lower), max(upper)) == (min(values), max(values)) and even[-1] == count - 1
        assert all(low <= values[at] <= high for low, at, high in zip(lower, even, upper, strict=True))


def test_the_window_of_a_curve_with_gaps_counts_its_values():
    assert window_of([*range(320)], 8) == 24
    assert window_of([*range(7, 480, 8)], 32) == 4  # each 8th update has a value: 4 of them on each batch
    assert window_of([3], 8) == window_of([], 8) == 1
