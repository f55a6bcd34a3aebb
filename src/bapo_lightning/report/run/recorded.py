"""Curves of a reference algorithm that ship with the package, for runs of the same protocol: the sections of
the configuration that decide what is trained, but for the algorithm.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from bapo_lightning.errors import DataError
from bapo_lightning.report.intervals import shown_interval
from bapo_lightning.report.metrics import MAIN, PANELS, metric_of
from bapo_lightning.report.run.curves import recorded_names
from bapo_lightning.run_folder.config_keys import leaves, may_change_on_resume
from bapo_lightning.run_folder.record import RunRecord, read_run

FOLDER = Path(__file__).with_name("recorded")
PROTOCOL = ("regime", "scale", "model", "data", "reward", "correction", "optimizer")
# Of what plots show, that which has a mean.
METRICS = [metric.name for metric in MAIN if PANELS[metric.group].plotted and not metric.jumps]
NUM_POINTS = 30  # of a curve: one for each of as many equal parts of the run


@dataclass(frozen=True)
class Band:
    """A curve over several seeds: means, of spiky metrics geometric ones."""

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
    """Averages finished runs, at least two, that differ in their seeds alone. Raises DataError for others."""
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
    held_out = sorted(name for name in recorded_names(first) if name.startswith("val/") and "/avg@" in name)
    return Recorded(
        algorithm=first.manifest["algorithm"],
        seeds=[run.manifest["seed"] for run in records],
        commit=str(first.manifest.get("git_commit")),
        protocol=protocol_of(first.config),
        curves={name: _band(records, name) for name in (*METRICS, *held_out)},
    )


def write_recorded(recorded: Recorded, path: Path) -> Path:
    """Writes a file that `find_recorded` finds when it lies in `FOLDER`."""
    plain = asdict(recorded)
    for band in plain["curves"].values():
        for name, values in band.items():
            band[name] = [round(value, 5) for value in values]
    path.write_text(json.dumps(plain, separators=(",", ":")) + "\n", encoding="utf-8")
    return path


def find_recorded(config: Mapping[str, Any]) -> Recorded | None:
    """Shipped curves of this protocol, if any. Unset options do not count: earlier versions had fewer."""
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
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))]
    curves = [{name: Band(**band) for name, band in plain.pop("curves").items()} for plain in found]
    return [Recorded(curves=each, **plain) for each, plain in zip(curves, found, strict=True)]


def _band(records: Sequence[RunRecord], metric: str) -> Band:
    num_updates, row = len(records[0].rows), metric_of(metric)
    edges = [round(part * num_updates / NUM_POINTS) for part in range(NUM_POINTS + 1)]
    band = Band([], [], [], [])
    for start, end in pairwise(edges):
        parts = []
        for run in records:
            values = [value for step, value in zip(*run.series(metric), strict=True) if start <= step < end]
            # The value that stands for a part, as in plots.
            parts += [median(values) if row.log else fmean(values)] if values else []
        shown = shown_interval(parts, row.log and min(parts, default=0) > 0, row.limits)
        if shown is not None and len(parts) > 1:
            band.steps.append((start + end - 1) / 2)
            for found, value in zip((band.mean, band.lower, band.upper), shown, strict=True):
                found.append(value)
    return band
