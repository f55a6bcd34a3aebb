"""Curves that follow from several metrics, and the limits of quantities."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from tests.report.synthetic_runs import RunMaker

from bapo_lightning.report.comparison.runs import METRIC_NAMES
from bapo_lightning.report.run.curves import HELD_OUT, HIGH_RAISED, LOW_RAISED, limits_of, series
from bapo_lightning.run_folder.record import read_run

SEARCHED = {"low": {"start": 0.6, "end": 0.9}, "high": {"start": 1.2, "end": 3.0}}


def with_bounds(folder: Path, bounds: dict[str, object]) -> Path:
    (folder / "config.yaml").write_text(json.dumps({"algorithm": {"name": "bapo", "bounds": bounds}}))
    return folder


def test_a_bound_that_jumps_is_a_share_of_updates_and_no_mean(make_run: RunMaker) -> None:
    highs, lows = [3.0, 1.2000000477, 3.0, 1.2], [0.6, 0.6, 0.9, 0.6]  # the second is 1.2 as a float32
    rows = [{"step": i, "bapo/clip_high": highs[i], "bapo/clip_low": lows[i]} for i in range(4)]
    record = read_run(with_bounds(make_run("run", rows=rows), SEARCHED))
    assert series(record, HIGH_RAISED) == ([0, 1, 2, 3], [1.0, 0.0, 1.0, 0.0])
    assert series(record, LOW_RAISED)[1] == [0.0, 0.0, 1.0, 0.0]
    fixed = read_run(with_bounds(record.path, {"low": 0.6, "high": 3.0}))
    assert series(fixed, HIGH_RAISED)[1] == [0.0] * 4
    unknown = read_run(with_bounds(record.path, {"target": 0.4}))
    assert series(unknown, HIGH_RAISED) == ([], [])


def test_held_out_accuracy_is_the_mean_over_sets_for_the_largest_k(make_run: RunMaker) -> None:
    rows = [
        {"step": 0, "val/a/avg@1": 0.0, "val/a/avg@4": 0.2, "val/b/avg@8": 0.6},
        {"step": 1, "val/a/avg@4": 1.0},
    ]
    steps, values = series(read_run(make_run("run", rows=rows)), HELD_OUT)
    assert steps == [0] and values == [pytest.approx(0.4)]


def test_every_metric_that_is_drawn_has_its_limits() -> None:
    others = (HELD_OUT, HIGH_RAISED, "bapo/target_met", "staleness/age_mean", "val/locks/avg@4")
    limits = {metric: limits_of(metric) for metric in (*METRIC_NAMES, *others)}
    assert {metric for metric, found in limits.items() if found is None} == {"train/reward"}
    shares = {metric for metric, found in limits.items() if found == (0.0, 1.0)}
    assert {HELD_OUT, HIGH_RAISED, "bapo/target_met", "val/locks/avg@4"} <= shares
    assert limits["policy/entropy"] == limits["staleness/age_mean"] == (0.0, math.inf)
