"""Curves of a reference algorithm that ship with the package, for runs of the same protocol: the sections of
the configuration that decide what is trained, except the algorithm.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from bapo_lightning.report.intervals import interval_on_axis
from bapo_lightning.report.metrics import MAIN, PANELS, metric_of
from bapo_lightning.system.errors import DataError
from bapo_lightning.system.run_folder.config_keys import leaves, may_change_on_resume
from bapo_lightning.system.run_folder.record import RunRecord, read_run

FOLDER = Path(__file__).with_name("recorded")
PROTOCOL = ("regime", "scale", "model", "data", "reward", "correction", "optimizer")
# The plotted metrics that have a mean.
METRICS = [metric.name for metric in MAIN if PANELS[metric.group].plotted and not metric.jumps]
NUM_POINTS = 30  # of a curve: one for each of that many equal parts of the run


@dataclass(frozen=True)
class Band:
    """A curve over several seeds: means, geometric ones for spiky metrics."""

    steps: list[float]  # middle of each part of the run, in updates
    mean: list[float]
    lower: list[float]  # ends of the 95 % interval over seeds
    upper: list[float]


@dataclass(frozen=True)
class Recorded:
    """Curves of one algorithm under one protocol."""

    algorithm: str
    seeds: list[int]
    commit: str
    protocol: dict[str, Any]
    curves: dict[str, Band]  # by metric, also `val/<set>/avg@<k>`

    @property
    def label(self) -> str:
        """Its name in summaries and plots."""
        return f"{self.algorithm}, {len(self.seeds)} seeds"


def protocol_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Part of a configuration that runs must share to be compared."""
    return {name: config.get(name) for name in PROTOCOL}


def record(folders: Sequence[Path]) -> Recorded:
    """Averages at least two finished runs that differ only in their seeds. Raises DataError for others."""
    records = [read_run(folder) for folder in folders]
    for run in records:
        if run.problem is not None:
            raise DataError(f"{run.path}: {run.problem}")
    records.sort(key=lambda run: run.manifest["seed"])
    first = records[0] if records else None
    if first is None or len(records) < 2:
        raise DataError(f"{len(records)} runs have no interval; give at least two of one setting")
    for run in records:
        same = protocol_of(run.config) == protocol_of(first.config)
        if not same or run.config.get("algorithm") != first.config.get("algorithm"):
            raise DataError(f"{run.path} and {first.path} differ in more than their seeds")
        if len(run.rows) != len(first.rows):
            raise DataError(f"{run.path} has {len(run.rows)} updates, {first.path} {len(first.rows)}")
    held_out = sorted(name for name in first.columns if name.startswith("val/") and "/avg@" in name)
    return Recorded(
        algorithm=first.manifest["algorithm"],
        seeds=[run.manifest["seed"] for run in records],
        commit=str(first.manifest.get("git_commit")),
        protocol=protocol_of(first.config),
        curves={name: _band(records, name) for name in (*METRICS, *held_out)},
    )


def write_recorded(recorded: Recorded, path: Path) -> Path:
    """Writes a file that `find_recorded` finds if it is in `FOLDER`."""
    plain = asdict(recorded)
    for band in plain["curves"].values():
        for name, values in band.items():
            band[name] = [round(value, 5) for value in values]
    path.write_text(json.dumps(plain, separators=(",", ":")) + "\n", encoding="utf-8")
    return path


def find_recorded(config: Mapping[str, Any]) -> Recorded | None:
    """Shipped curves of this protocol, if any. Unset options are ignored: earlier versions had fewer."""
    wanted = _set_options(json.loads(json.dumps(protocol_of(config))))
    return next((recorded for recorded in _shipped() if _set_options(recorded.protocol) == wanted), None)


def _set_options(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """The options that decide what is trained, not how the model computes it."""
    return {
        key: value
        for key, value in leaves(protocol)
        if value is not None and not (key.startswith("model.") and may_change_on_resume(key))
    }


@cache
def _shipped() -> list[Recorded]:
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))]
    curves = [{name: Band(**band) for name, band in plain.pop("curves").items()} for plain in records]
    return [Recorded(curves=each, **plain) for each, plain in zip(curves, records, strict=True)]


def part_edges(num_updates: int) -> list[int]:
    """Updates at which the parts of a run begin, and the end of the last part."""
    return [round(part * num_updates / NUM_POINTS) for part in range(NUM_POINTS + 1)]


def values_by_part(run: RunRecord, metric: str, num_updates: int) -> dict[float, float]:
    """Middle of each part of `num_updates` updates -> mean of a run in it, or median for spiky metrics. Parts
    without a value, and parts that the run did not complete, are absent.
    """
    places, values = run.series(metric)
    middle = median if metric_of(metric).log else fmean
    parts = {}
    for start, end in pairwise(part_edges(num_updates)):
        inside = values[bisect_left(places, start) : bisect_left(places, end)]
        if inside and end <= len(run.rows):
            parts[(start + end - 1) / 2] = middle(inside)
    return parts


def _band(records: Sequence[RunRecord], metric: str) -> Band:
    row, band = metric_of(metric), Band([], [], [], [])
    runs = [values_by_part(run, metric, len(run.rows)) for run in records]
    for place in sorted(set().union(*runs)):
        parts = [run[place] for run in runs if place in run]
        shown = interval_on_axis(parts, row.log and min(parts) > 0, row.limits)
        if shown is not None and len(parts) > 1:
            band.steps.append(place)
            for curve, value in zip((band.mean, band.lower, band.upper), shown, strict=True):
                curve.append(value)
    return band
