"""Differences between evaluations, paired by problem."""

import numpy as np
import pytest

from bapo_lightning.evaluation.comparison import Evaluated, compare_evaluations, comparison_notes
from bapo_lightning.evaluation.outcome import SampleOutcome
from bapo_lightning.evaluation.results import estimate
from bapo_lightning.types import ScoreStatus


def problems(*correct):
    """One problem for each number of correct samples out of four."""
    right = SampleOutcome(ScoreStatus.CORRECT, "7", 5, False)
    wrong = SampleOutcome(ScoreStatus.WRONG, "8", 9, False)
    return {f"p{index}": [right] * count + [wrong] * (4 - count) for index, count in enumerate(correct)}


def evaluated(name, *correct, k=4, digest="same", **settings):
    return Evaluated(name, k, {"sums": problems(*correct)}, {"sums": digest}, settings)


def test_a_difference_is_that_of_the_problems_and_its_interval_too():
    rows = compare_evaluations([evaluated("before", 0, 1, 2, 4), evaluated("after", 1, 2, 3, 4)], "before")
    before, after = rows
    assert not before.differences and (after.num_problems, after.k) == (4, 4)
    assert after.values["avg@4"].value - before.values["avg@4"].value == pytest.approx(3 / 16)
    assert after.differences["avg@4"] == estimate(np.array([0.25, 0.25, 0.25, 0.0]), -1.0, 1.0)
    # Far narrower than the intervals of the two alone: what is common to both goes out.
    assert after.differences["avg@4"].excludes_zero
    assert after.values["avg@4"].low < before.values["avg@4"].high


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"digest": "other"}, "its problems are others"), ({"k": 8}, "it has k=8, the reference k=4")],
)
def test_what_is_not_alike_is_not_paired_and_that_is_said(change, reason):
    both = evaluated("before", 0, 1, 2, 4), evaluated("after", 1, 1, 1, 1, **change)
    assert not compare_evaluations(both, "before")[1].differences
    assert comparison_notes(both, "before") == [f"after, sums: no difference, {reason}"]


def test_settings_that_differ_are_named_beside_the_difference():
    notes = comparison_notes([evaluated("a", 1, temperature=0.6), evaluated("b", 2, temperature=1.0)], "a")
    assert notes == ["b differs from a in more than its weights: temperature 0.6 -> 1.0"]


def test_without_answers_that_vote_there_is_no_majority_to_compare():
    silent = {"p0": [SampleOutcome(ScoreStatus.CORRECT, "", 5, False)] * 4}
    voiceless = Evaluated("b", 4, {"sums": silent}, {"sums": "same"})
    rows = compare_evaluations([evaluated("a", 2), voiceless], "a")
    assert "maj@4" in rows[0].values and not {"maj@4"} & {*rows[1].values, *rows[1].differences}
    assert rows[1].differences["avg@4"].value == 0.5
