"""Monitors in whole runs: successive gradients, ages against their bound, and right answers that end."""

import json
import re

import pytest
from tests.commands import train_to_end
from tests.runs.written import rows

from bapo_lightning.callbacks.alarm import ADVICE

OWN = (
    *("regime=reuse", "callbacks.gradient.cosine=true", "callbacks.validation.every=4"),
    *("scale.validation_problems=4", "callbacks.alarms.age_bound.patience=4"),
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two rollout batches, then a third one after a resume; the folder, and what each part printed."""
    folder = tmp_path_factory.mktemp("reuse") / "run"
    return folder, [train_to_end(folder, 2, *OWN), train_to_end(folder, 3, *OWN, "resume=auto")]


def test_all_updates_have_a_cosine_but_the_first_and_the_one_after_a_resume(runs):
    cosines = [row.get("gradient/cosine") for row in rows(runs[0])]
    assert [number for number, value in enumerate(cosines) if value is None] == [0, 8]
    assert all(-1 <= value <= 1 for value in cosines if value is not None)


def test_the_largest_age_so_far_is_reported_next_to_the_bound(runs):
    folder, (first, second) = runs
    written = rows(folder)
    oldest = [max(row["staleness/age_max"] for row in written[: end + 1]) for end in range(len(written))]
    assert [row["staleness/bound_reached"] for row in written] == pytest.approx([age / 15 for age in oldest])
    assert re.search(rf"^  age bound +15, reached {oldest[7]:.0f} *$", first, re.MULTILINE)
    assert re.search(rf"^  age bound +15, reached {oldest[-1]:.0f} *$", second, re.MULTILINE)
    found = json.loads((folder / "summary.json").read_text())["age_bound"]
    assert found == {"max_age": 15, "reached": oldest[-1]} and oldest[-1] > oldest[7]
    (warning,) = [line for line in first.splitlines() if line.startswith("warning: alarm age_bound: ")]
    assert "in 4 measured updates in a row (policy version 3)" in warning
    assert warning.endswith(ADVICE["staleness/bound_reached", "below"])


def test_mismatch_is_split_by_age_and_depth_and_ratios_are_reported(runs):
    first, second = rows(runs[0])[:2]
    assert first["mismatch/abs_logp_diff_age_0"] == pytest.approx(first["mismatch/abs_logp_diff_mean"])
    assert "mismatch/abs_logp_diff_age_1" not in first and "mismatch/abs_logp_diff_age_0" not in second
    assert second["mismatch/abs_logp_diff_age_1"] > 10 * first["mismatch/abs_logp_diff_age_0"]
    assert first["mismatch/kl_depth_0_to_15"] >= 0 and "mismatch/kl_depth_16384_up" not in first
    assert first["ratio/effective_sample_size"] == pytest.approx(1, abs=1e-6)
    assert 0.5 < second["ratio/effective_sample_size"] <= 1 and second["ratio/chi_square"] > 0


def test_right_and_finished_answers_are_no_more_than_right_ones(runs):
    for row in rows(runs[0]):
        assert 0 <= row["train/right_and_finished"] <= row["train/reward"]
    measured = [row for row in rows(runs[0]) if "val/additions/right_and_finished" in row]
    assert len(measured) == 4, "before the first update, and after 4, 8 and 12"
    assert all(row["val/additions/right_and_finished"] <= row["val/additions/avg@4"] for row in measured)
