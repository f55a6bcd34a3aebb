import numpy as np
import pytest

from bapo_lightning.evaluation.results import estimate, estimates


def test_the_interval_of_many_problems_is_that_of_the_normal_approximation():
    values = np.array([0.0, 1.0] * 500)
    found = estimate(values, 0.0, 1.0)
    half_width = 1.959964 * 0.5 / np.sqrt(1000)
    assert found.value == 0.5
    assert (found.low, found.high) == pytest.approx((0.5 - half_width, 0.5 + half_width), abs=0.002)


def test_the_interval_of_three_problems_is_that_of_all_27_resamples():
    # Means of 27 resamples of 0, 0.5, 1: 0 and 1 come up once each (3.7 %), so that both ends of the middle
    # 95 % are reached.
    found = estimate(np.array([0.0, 0.5, 1.0]))
    assert (found.low, found.value, found.high) == (0.0, 0.5, 1.0)


def test_problems_that_all_came_out_alike_leave_room_for_those_that_were_not_drawn():
    def ends(value, *limits):
        found = estimate(np.full(30, value), *limits)
        return pytest.approx((found.low, found.high), abs=1e-4)

    # Clopper and Pearson for 0 of 30: 11.57 %.
    assert ends(0.0, 0.0, 1.0) == (0.0, 0.1157)
    assert ends(1.0, 0.0, 1.0) == (0.8843, 1.0)
    assert ends(0.0, -1.0, 1.0) == (-0.1157, 0.1157)
    assert ends(32.0) == (32.0, 32.0)


@pytest.mark.slow
def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    generator = np.random.default_rng(1)
    trials = generator.binomial(4, 0.3, size=(80, 60)) / 4
    covered = [found.low <= 0.3 <= found.high for found in (estimate(trial, 0.0, 1.0) for trial in trials)]
    assert 0.88 < np.mean(covered) <= 1.0


def test_metrics_share_their_resamples():
    values = np.random.default_rng(2).random((20, 1))
    first, second = estimates(np.hstack([values, 2 * values]), [(None, None)] * 2)
    assert first == estimate(values[:, 0])
    assert (second.low, second.high) == pytest.approx((2 * first.low, 2 * first.high))


def test_no_problems_have_no_interval():
    with pytest.raises(ValueError, match="at least one problem"):
        estimate(np.array([]))
