"""Intervals over problems, and differences between evaluations, paired by problem."""

import numpy as np
import pytest

from bapo_lightning.objectives.outcome import SampleOutcome
from bapo_lightning.tools.evaluation.comparison import Evaluated, compare_evaluations, comparison_notes
from bapo_lightning.tools.evaluation.results import estimates
from bapo_lightning.types import ScoreStatus


def problems(*correct):
    """One problem for each number of correct samples out of four."""
    right = SampleOutcome(ScoreStatus.CORRECT, "7", 5, False)
    wrong = SampleOutcome(ScoreStatus.WRONG, "8", 9, False)
    return {f"p{index}": [right] * count + [wrong] * (4 - count) for index, count in enumerate(correct)}


def estimate(values, smallest=None, largest=None):
    return estimates(values[:, None], [(smallest, largest)])[0]


def evaluated(name, *correct, k=4, digest="same", **settings):
    return Evaluated(name, k, {"sums": problems(*correct)}, {"sums": digest}, settings)


def test_a_difference_is_that_of_the_problems_and_its_interval_too():
    rows = compare_evaluations([evaluated("before", 0, 1, 2, 4), evaluated("after", 1, 2, 3, 4)], "before")
    before, after = rows
    assert not before.differences and (after.num_problems, after.k) == (4, 4)
    assert after.values["avg@4"].value - before.values["avg@4"].value == pytest.approx(3 / 16)
    assert after.differences["avg@4"] == estimate(np.array([0.25, 0.25, 0.25, 0.0]), -1.0, 1.0)
    # Far narrower than the intervals of the two alone: what is common to both goes out.
    assert after.differences["avg@4"].low > 0
    assert after.values["avg@4"].low < before.values["avg@4"].high


@pytest.mark.parametrize(("change", "reason"), [
    ({"digest": "other"}, "its problems are others"), ({"k": 8}, "it has k=8, the reference k=4"),
])  # fmt: skip
def test_what_is_not_alike_is_not_paired_and_that_is_said(change, reason):
    both = evaluated("before", 0, 1, 2, 4), evaluated("after", 1, 1, 1, 1, **change)
    assert not compare_evaluations(both, "before")[1].differences
    assert comparison_notes(both, "before") == [f"after, sums: no difference, {reason}"]


def test_settings_that_differ_are_named_next_to_the_difference():
    notes = comparison_notes([evaluated("a", 1, temperature=0.6), evaluated("b", 2, temperature=1.0)], "a")
    assert notes == ["b differs from a in more than its weights: temperature 0.6 -> 1.0"]


def test_without_answers_that_vote_there_is_no_majority_to_compare():
    silent = {"p0": [SampleOutcome(ScoreStatus.CORRECT, "", 5, False)] * 4}
    voiceless = Evaluated("b", 4, {"sums": silent}, {"sums": "same"})
    rows = compare_evaluations([evaluated("a", 2), voiceless], "a")
    assert "maj@4" in rows[0].values and not {"maj@4"} & {*rows[1].values, *rows[1].differences}
    assert rows[1].differences["avg@4"].value == 0.5


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
