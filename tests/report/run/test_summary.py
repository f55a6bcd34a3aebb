"""Every number of summary.json against values worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.report.synthetic_runs import RunMaker

from bapo_lightning.report.metrics import HIGH_RAISED, LOW_RAISED
from bapo_lightning.report.run.summary import (
    TIME_PARTS,
    count_fates,
    moving_average,
    summarise,
    write_summary,
)
from bapo_lightning.run_folder.record import Row, RunRecord


def rows_of(name: str, values: list[float | None]) -> list[Row]:
    return [{"step": step, name: value} for step, value in enumerate(values)]


def summary_of(
    rows: list[Row], manifest: dict[str, Any], config: dict[str, Any] | None = None
) -> dict[str, Any]:
    return summarise(RunRecord(Path("run"), config or {}, manifest, rows))


def test_first_and_final_average_a_tenth_of_the_updates() -> None:
    values: list[float | None] = [0.0, 0.2, *[0.5] * 8, 0.9, 0.7, *[0.5] * 6, 0.6, 0.4]
    reward = summary_of(rows_of("train/reward", values), {})["metrics"]["train/reward"]
    found = {"first": 0.1, "final": 0.5, "gain": 0.4, "extreme": 0.8, "mean": 0.49, "last": 0.4}
    assert reward == pytest.approx(found)


def test_a_short_run_averages_over_one_update_and_of_an_entropy_the_lowest_counts() -> None:
    entropy = summary_of(rows_of("policy/entropy", [0.6, 0.2, 0.3]), {})["metrics"]["policy/entropy"]
    assert [entropy[name] for name in ("first", "final", "extreme")] == [0.6, 0.3, 0.2]


def test_the_extreme_of_what_has_spikes_or_is_a_maximum_is_one_value() -> None:
    values: list[float | None] = [1.0] * 19 + [21.0]  # windows of two
    for name, extreme in (
        ("train/grad_norm", 21.0),
        ("staleness/age_max", 21.0),
        ("staleness/age_mean", 11.0),
    ):
        assert summary_of(rows_of(name, values), {})["metrics"][name]["extreme"] == extreme


def test_only_what_was_recorded_has_statistics() -> None:
    rows: list[Row] = [{"step": 0, "train/reward": 0.25, "train/grad_norm": None, "bapo/clip_high": 1.2}]
    assert summary_of(rows, {})["metrics"].keys() == {"train/reward", "bapo/clip_high"}


def test_moving_average_takes_full_windows_only() -> None:
    assert moving_average([1.0, 3.0, 5.0, 9.0], 2) == [2.0, 4.0, 7.0]


def test_bounds_count_the_updates_above_the_start_that_the_configuration_gives() -> None:
    highs, lows = [1.25, 1.2000000477, 1.25, 1.45], [0.7, 0.7, 0.7, 0.7]  # the second is 1.2 as a float32
    rows: list[Row] = [{"step": i, "bapo/clip_high": highs[i], "bapo/clip_low": lows[i]} for i in range(4)]
    searched = {
        "algorithm": {"bounds": {"low": {"start": 0.6, "end": 0.9}, "high": {"start": 1.2, "end": 3.0}}}
    }
    found = summary_of(rows, {}, searched)["metrics"]
    assert (found[HIGH_RAISED]["mean"], found[LOW_RAISED]["mean"]) == (0.75, 1.0)
    fixed = {"algorithm": {"bounds": {"low": 0.8, "high": 1.2}}}
    assert summary_of(rows_of("bapo/clip_high", [1.2, 1.2]), {}, fixed)["metrics"][HIGH_RAISED]["mean"] == 0.0


def test_time_is_split_into_parts_and_the_rest_of_the_wall_time() -> None:
    rows: list[Row] = [
        {"step": 0, "time/rollout_seconds": 2.0, "time/update_seconds": 1.0},
        {"step": 1, "time/update_seconds": 1.5},
    ]
    seconds = summary_of(rows, {"wall_seconds": 6.0})["seconds"]
    unknown = dict.fromkeys(TIME_PARTS)
    assert seconds == unknown | {"total": 6.0, "rollout": 2.0, "update": 2.5, "other": 1.5}


def test_without_wall_time_the_parts_are_the_total() -> None:
    seconds = summary_of([{"step": 0, "time/update_seconds": 1.5}], {})["seconds"]
    assert (seconds["total"], seconds["other"]) == (1.5, 0.0)


def test_rollout_speed_weighs_each_batch_by_its_duration() -> None:
    rows: list[Row] = [
        {"step": 0, "rollout/tokens_per_second": 1000.0, "time/rollout_seconds": 3.0},
        {"step": 1},
        {"step": 2, "rollout/tokens_per_second": 2000.0, "time/rollout_seconds": 1.0},
    ]
    assert summary_of(rows, {})["rollout_tokens_per_second"] == 1250.0
    assert (
        summary_of(rows_of("rollout/tokens_per_second", [1000.0, 2000.0]), {})["rollout_tokens_per_second"]
        == 1500.0
    )


def test_counts_are_summed_or_taken_from_the_last_update() -> None:
    rows: list[Row] = [
        {
            "step": 0, "progress/samples": 64, "progress/tokens": 900, "train/skipped_updates": 1,
            "rollout/uniform_groups": 3,
        },
        {
            "step": 1, "progress/samples": 128, "progress/tokens": 1700, "train/skipped_updates": 1,
            "rollout/uniform_groups": 4,
        },
    ]  # fmt: skip
    summary = summary_of(rows, {})
    totals = [summary[name] for name in ("updates", "samples", "tokens", "skipped_updates")]
    assert totals == [2, 128, 1700, 1]
    assert summary["drops"]["uniform_groups"] == 7
    assert summary["drops"]["evicted"] is None


def test_validation_keeps_first_and_last_and_the_best_accuracy() -> None:
    rows = [
        row | {"val/sums/response_length": 20.0} for row in rows_of("val/sums/avg@8", [0.5, None, 0.9, 0.7])
    ]
    found = summary_of(rows, {})["metrics"]
    accuracy, length = found["val/sums/avg@8"], found["val/sums/response_length"]
    assert [accuracy[name] for name in ("first", "last", "extreme")] == [0.5, 0.7, 0.9]
    assert (length["first"], length["last"]) == (20.0, 20.0)


def test_non_finite_values_are_counted_and_enter_no_mean() -> None:
    summary = summary_of(rows_of("train/grad_norm", [1.0, float("nan"), float("inf"), 2.0]), {})
    assert (summary["metrics"]["train/grad_norm"]["extreme"], summary["non_finite_values"]) == (2.0, 2)
    rows = rows_of("train/grad_norm", [0.0, 1.0, 0.0])
    assert summary_of(rows, {})["updates_without_gradient"] == 2


def test_an_interrupted_run_without_updates_has_a_summary() -> None:
    summary = summary_of([], {"status": "interrupted", "algorithm": "bapo"})
    assert (summary["status"], summary["updates"], summary["metrics"]) == ("interrupted", 0, {})
    assert summary["seconds"]["total"] == 0.0


def test_the_written_summary_is_strict_json_and_leaves_no_partial_file(make_run: RunMaker) -> None:
    folder = make_run(rows=[{"step": 0, "train/reward": float("nan")}, {"step": 1, "train/reward": 0.5}])
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write('{"step"')
    summary = write_summary(folder)
    text = (folder / "summary.json").read_text()
    assert json.loads(text) == summary
    assert "NaN" not in text
    assert (summary["unreadable_lines"], summary["non_finite_values"], summary["rolled_back_rows"]) == (
        1,
        1,
        0,
    )
    assert {path.name for path in folder.iterdir()} == {
        "config.yaml", "manifest.json", "metrics.jsonl", "summary.json",
    }  # fmt: skip


def test_idle_shares_count_what_each_half_waits_for():
    synchronous = [
        {
            "step": 0, "time/step_seconds": 4.0, "time/rollout_seconds": 1.0, "time/reward_seconds": 0.5,
            "time/wait_seconds": 0.5,
        }
    ]  # fmt: skip
    overlapping = [
        {
            "step": 0, "time/step_seconds": 4.0, "time/rollout_seconds": 3.0, "time/wait_seconds": 1.0,
            "time/engine_idle_seconds": 0.5,
        }
    ]  # fmt: skip
    assert summary_of(synchronous, {})["idle"] == {"trainer": 0.5, "engine": 0.75}
    assert summary_of(overlapping, {})["idle"] == {"trainer": 0.25, "engine": 0.125}
    assert summary_of([{"step": 0}], {})["idle"] == {"trainer": None, "engine": None}


def test_fates_are_counted_by_epoch_and_reason():
    ledger = [
        {"epoch": 0, "problem": "a", "fate": "trained", "version": 1},
        {"epoch": 0, "problem": "b", "fate": "filtered", "reason": "all scores equal", "version": 1},
        {"epoch": 1, "problem": "a", "fate": "trained", "version": 2},
    ]
    assert count_fates(ledger) == {"0": {"trained": 1, "filtered (all scores equal)": 1}, "1": {"trained": 1}}
