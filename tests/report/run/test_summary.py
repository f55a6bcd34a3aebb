"""Every number of summary.json, and curves made of several metrics, against values worked out by hand."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from bapo_lightning.report.metrics import EXPECTED, HELD_OUT, HIGH_RAISED, LOW_RAISED, metric_of
from bapo_lightning.report.run.curves import series
from bapo_lightning.report.run.summary import TIME_PARTS, count_fates, summarise, write_summary
from bapo_lightning.system.run_folder.record import RunRecord


def rows_of(name, values):
    return [{"step": step, name: value} for step, value in enumerate(values)]


def record_of(rows, manifest=(), **bounds):
    config = {"algorithm": {"bounds": bounds}} if bounds else {}
    return RunRecord(Path("run"), config, dict(manifest), rows)


def summary_of(rows, manifest=(), **bounds):
    return summarise(record_of(rows, manifest, **bounds))


def statistics(name, values):
    return summary_of(rows_of(name, values))["metrics"][name]


def test_first_and_final_average_a_tenth_of_the_updates():
    values = [0.0, 0.2, *[0.5] * 8, 0.9, 0.7, *[0.5] * 6, 0.6, 0.4]
    found = {"first": 0.1, "final": 0.5, "gain": 0.4, "extreme": 0.8, "mean": 0.49, "last": 0.4}
    assert statistics("train/reward", values) == pytest.approx(found)
    # Windows of three and four; a part of one, such as the first value alone, has no say in the extreme.
    assert statistics("train/reward", [1.0, *[0.0] * 29])["extreme"] == pytest.approx(1 / 3)
    assert statistics("train/reward", [*[0.0] * 39, 1.0])["extreme"] == 0.25


def test_a_short_run_averages_over_one_update_and_of_an_entropy_the_lowest_counts():
    entropy = statistics("policy/entropy", [0.6, 0.2, 0.3])
    assert [entropy[name] for name in ("first", "final", "extreme")] == [0.6, 0.3, 0.2]


@pytest.mark.parametrize(
    ("name", "extreme"),
    [("train/grad_norm", 21.0), ("staleness/age_max", 21.0), ("staleness/age_mean", 11.0)],
)
def test_the_extreme_of_what_has_spikes_or_is_a_maximum_is_one_value(name, extreme):
    assert statistics(name, [1.0] * 19 + [21.0])["extreme"] == extreme  # windows of two


def test_only_what_was_recorded_has_statistics():
    rows = [{"step": 0, "train/reward": 0.25, "train/grad_norm": None, "bapo/clip_high": 1.2}]
    assert summary_of(rows)["metrics"].keys() == {"train/reward", "bapo/clip_high"}


@pytest.mark.parametrize(("bounds", "highs", "lows"), [
    ({"low": {"start": 0.6, "end": 0.9}, "high": {"start": 1.2, "end": 3.0}}, [1, 0, 1, 0], [0, 0, 1, 0]),
    ({"low": 0.6, "high": 3.0}, [0, 0, 0, 0], [0, 0, 1, 0]),
    ({"target": 0.4}, [], []),
])  # fmt: skip
def test_a_bound_that_jumps_is_a_share_of_updates_and_no_mean(bounds, highs, lows):
    pairs = [(3.0, 0.6), (1.2000000477, 0.6), (3.0, 0.9), (1.2, 0.6)]  # the second is 1.2 as a float32
    rows = [{"step": i, "bapo/clip_high": high, "bapo/clip_low": low} for i, (high, low) in enumerate(pairs)]
    record = record_of(rows, **bounds)
    assert [series(record, name)[1] for name in (HIGH_RAISED, LOW_RAISED)] == [highs, lows]
    found = summarise(record)["metrics"]
    assert found.get(HIGH_RAISED, {}).get("mean") == (sum(highs) / 4 if highs else None)


def test_held_out_accuracy_is_the_mean_over_sets_for_the_largest_k():
    first = {"step": 0, "val/a/avg@1": 0.0, "val/a/avg@4": 0.2, "val/b/avg@8": 0.6}
    steps, values = series(record_of([first, {"step": 1, "val/a/avg@4": 1.0}]), HELD_OUT)
    assert steps == [0] and values == [pytest.approx(0.4)]


def test_every_metric_that_is_drawn_has_its_limits():
    others = (HELD_OUT, HIGH_RAISED, "bapo/target_met", "staleness/age_mean", "val/locks/avg@4")
    limits = {metric: metric_of(metric).limits for metric in (*(row.name for row in EXPECTED), *others)}
    assert {metric for metric, found in limits.items() if found is None} == {"train/reward"}
    shares = {metric for metric, found in limits.items() if found == (0.0, 1.0)}
    assert {HELD_OUT, HIGH_RAISED, "bapo/target_met", "val/locks/avg@4"} <= shares
    assert limits["policy/entropy"] == limits["staleness/age_mean"] == (0.0, math.inf)


def test_time_is_split_into_parts_and_the_rest_of_the_wall_time_if_that_is_known():
    first = {"step": 0, "time/rollout_seconds": 2.0, "time/update_seconds": 1.0}
    rows = [first, {"step": 1, "time/update_seconds": 1.5}]
    parts = dict.fromkeys(TIME_PARTS) | {"rollout": 2.0, "update": 2.5}
    assert summary_of(rows, {"wall_seconds": 6.0})["seconds"] == parts | {"total": 6.0, "other": 1.5}
    assert summary_of(rows)["seconds"] == parts | {"total": 4.5, "other": 0.0}


def test_what_runs_alongside_training_is_no_part_of_its_time():
    spent = {"rollout": 5.0, "reward": 1.0, "update": 2.5, "sync": 0.5, "wait": 1.0}
    row = {"step": 0, "time/step_seconds": 5.0} | {f"time/{part}_seconds": s for part, s in spent.items()}
    record = replace(record_of([row], {"wall_seconds": 6.0}), config={"regime": {"async_generation": True}})
    summary = summarise(record)
    assert summary["beside_training"] == ["rollout", "reward"]
    assert (summary["seconds"]["rollout"], summary["seconds"]["other"]) == (5.0, 2.0)
    assert summary["idle"] == {"trainer": 0.2, "engine": 0.0}, "an engine that never waited"
    assert summary_of([row], {"wall_seconds": 20.0})["seconds"]["other"] == 10.0


def test_rollout_speed_weighs_each_batch_by_its_duration():
    speed, seconds = "rollout/tokens_per_second", "time/rollout_seconds"
    rows = [{"step": 0, speed: 1000.0, seconds: 3.0}, {"step": 1}, {"step": 2, speed: 2000.0, seconds: 1.0}]
    assert summary_of(rows)["rollout_tokens_per_second"] == 1250.0
    assert summary_of(rows_of(speed, [1000.0, 2000.0]))["rollout_tokens_per_second"] == 1500.0


def test_counts_are_summed_or_taken_from_the_last_update():
    names = ("progress/samples", "progress/tokens", "train/skipped_updates", "rollout/uniform_groups")
    counts = [(64, 900, 1, 3), (128, 1700, 1, 4)]
    rows = [{"step": step, **dict(zip(names, found, strict=True))} for step, found in enumerate(counts)]
    summary = summary_of(rows)
    totals = [summary[name] for name in ("updates", "samples", "tokens", "skipped_updates")]
    assert totals == [2, 128, 1700, 1]
    assert (summary["drops"]["uniform_groups"], summary["drops"]["evicted"]) == (7, None)


def test_non_finite_values_are_counted_and_enter_no_mean():
    summary = summary_of(rows_of("train/grad_norm", [1.0, float("nan"), float("inf"), 2.0]))
    assert (summary["metrics"]["train/grad_norm"]["extreme"], summary["non_finite_values"]) == (2.0, 2)
    assert summary_of(rows_of("train/grad_norm", [0.0, 1.0, 0.0]))["updates_without_gradient"] == 2


def test_an_interrupted_run_without_updates_has_a_summary():
    summary = summary_of([], {"status": "interrupted", "algorithm": "bapo"})
    assert (summary["status"], summary["updates"], summary["metrics"]) == ("interrupted", 0, {})
    assert summary["seconds"]["total"] == 0.0


def test_the_written_summary_is_strict_json_and_leaves_no_partial_file(make_run):
    folder = make_run(rows=rows_of("train/reward", [float("nan"), 0.5]))
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write('{"step"')
    summary = write_summary(folder)
    text = (folder / "summary.json").read_text()
    assert json.loads(text) == summary and "NaN" not in text
    counts = [summary[name] for name in ("unreadable_lines", "non_finite_values", "rolled_back_rows")]
    assert counts == [1, 1, 0]
    names = {path.name for path in folder.iterdir()}
    assert names == {"config.yaml", "manifest.json", "metrics.jsonl", "summary.json"}


@pytest.mark.parametrize(("times", "is_async", "trainer", "engine"), [
    ({"step": 4.0, "rollout": 1.0, "reward": 0.5, "wait": 0.5}, False, 0.5, 0.75),
    ({"step": 4.0, "rollout": 3.0, "wait": 1.0, "engine_idle": 0.5}, True, 0.25, 0.125),  # both at once
    ({"step": 4.0, "rollout": 4.0, "reward": 1.0}, True, 0.0, 0.0),
    ({}, False, None, None),
])  # fmt: skip
def test_idle_shares_count_what_each_half_waits_for(times, is_async, trainer, engine):
    row = {"step": 0, **{f"time/{part}_seconds": seconds for part, seconds in times.items()}}
    record = replace(record_of([row]), config={"regime": {"async_generation": is_async}})
    assert summarise(record)["idle"] == {"trainer": trainer, "engine": engine}


@pytest.mark.parametrize(("regime", "ages", "found"), [
    ({"max_age": 7}, [0.0, 2.0, 1.0], {"max_age": 7, "reached": 2}),
    ({"max_age": None}, [0.0, 3.0], {"max_age": None, "reached": 3}),
    ({"max_age": 7}, [], {"max_age": 7, "reached": None}),
    (None, [1.0], {"max_age": None, "reached": 1}),
])  # fmt: skip
def test_the_age_that_is_allowed_stands_next_to_the_one_that_was_reached(regime, ages, found):
    record = replace(record_of(rows_of("staleness/age_max", ages)), config={"regime": regime})
    assert summarise(record)["age_bound"] == found


def test_fates_are_counted_by_epoch_and_reason():
    ledger = [
        {"epoch": 0, "problem": "a", "fate": "trained", "version": 1},
        {"epoch": 0, "problem": "b", "fate": "filtered", "reason": "all scores equal", "version": 1},
        {"epoch": 1, "problem": "a", "fate": "trained", "version": 2},
    ]
    assert count_fates(ledger) == {"0": {"trained": 1, "filtered (all scores equal)": 1}, "1": {"trained": 1}}
