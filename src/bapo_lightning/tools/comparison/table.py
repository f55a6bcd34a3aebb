"""Several runs as numbers: statistics with intervals, paired differences with p-values, mean curves.

folders -> collect -> runs -> compare -> Comparison -> console, page, files
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from bapo_lightning.report.intervals import Interval, mean_interval
from bapo_lightning.report.metrics import EXPECTED, HELD_OUT, Metric, compared_among, metric_of
from bapo_lightning.report.paired import holm, paired_difference, paired_p_value, verdict_of
from bapo_lightning.report.style import Look, setting_looks
from bapo_lightning.system.errors import DataError
from bapo_lightning.system.run_folder.config_keys import leaves, should_be_alike
from bapo_lightning.tools.comparison.mean_curve import MeanCurve, mean_curve
from bapo_lightning.tools.comparison.runs import (
    COLUMNS,
    NOT_BEGUN,
    NOTHING,
    STATISTICS,
    Column,
    Run,
    statistic_of,
)
from bapo_lightning.tools.comparison.settings import (
    choose_reference,
    conditions_in_order,
    differing_keys,
    settings_in_order,
)

Cell = tuple[str, str]  # setting, condition
ResultKey = tuple[str, str, str, str]  # setting, condition, metric, statistic


@dataclass(frozen=True)
class Result:
    """One statistic of one metric in a cell, and its difference to the reference, paired by seed."""

    by_seed: Mapping[int, float]
    value: Interval | None
    difference: Interval | None
    p_value: float | None  # of the paired t-test
    p_adjusted: float | None = None  # for all comparisons of the page (Holm)
    within: float = 0.0  # differences that count as equal
    resolution: float = 0.0  # step of the values; 0 if unknown

    @property
    def verdict(self) -> str:
        """See `verdict_of`; none for the reference itself."""
        return verdict_of(self.difference, self.p_adjusted, self.within)


@dataclass(frozen=True)
class Comparison:
    """Everything that tables, page and pictures show."""

    runs: list[Run]  # all, including those left out
    settings: list[str]
    conditions: list[str]
    reference: str
    metrics: tuple[Metric, ...]  # those expected of every run, and others that one of them recorded
    cells: dict[Cell, list[Run]]  # usable runs, condition by condition
    results: dict[ResultKey, Result]
    curves: dict[tuple[str, str, str], MeanCurve]  # by (setting, condition, metric)
    differing: dict[str, dict[str, str]]  # key of the configuration -> value by setting
    notes: list[str]  # on runs that differ in keys that should be equal
    limits: list[str]  # notes on single cells

    @property
    def usable(self) -> list[Run]:
        """Runs that enter means."""
        return [run for run in self.runs if run.problem is None]

    @property
    def left_out(self) -> list[Run]:
        """Runs that enter no mean; their `problem` says why."""
        return [run for run in self.runs if run.problem is not None]

    @property
    def warnings(self) -> list[str]:
        """Lines below the table: the runs that are left out, and the notes."""
        started = [run for run in self.left_out if run.problem != NOT_BEGUN]
        waiting = len(self.left_out) - len(started)
        missing = [f"left out: {waiting} runs of this sweep, which have not started"] if waiting else []
        return [*(f"left out: {run.path}: {run.problem}" for run in started), *missing, *self.notes]

    @property
    def looks(self) -> dict[str, Look]:
        """Look of each setting, in their order."""
        return setting_looks(settings_in_order(self.usable))

    def result(self, cell: Cell, column: Column) -> Result:
        """The result that a column of the short table shows."""
        return self.results[(*cell, column.metric, column.statistic)]

    def is_compared(self, cell: Cell) -> bool:
        """Whether differences are computed for a cell: not for the reference; it must have runs there."""
        setting, condition = cell
        return setting != self.reference and (self.reference, condition) in self.cells


def compare(runs: Sequence[Run], reference: str | None = None) -> Comparison:
    """Compares runs with their curves. Raises DataError if none can be compared, or none is `reference`."""
    usable = [run for run in runs if run.problem is None]
    if not usable:
        reasons = "\n  ".join(f"{run.path}: {run.problem}" for run in runs) or "no folder was given"
        raise DataError(f"no finished run to compare:\n  {reasons}")
    conditions, algorithms = conditions_in_order(usable), settings_in_order(usable)
    settings, chosen = [*algorithms], choose_reference(algorithms, reference)
    cells = {
        (setting, condition): members
        for condition in conditions
        for setting in settings
        if (members := [run for run in usable if (run.setting, run.condition) == (setting, condition)])
    }
    metrics = compared_among({name for run in usable for name, curve in run.curves.items() if curve[1]})
    curves = {
        (*cell, metric.name): mean_curve(
            [run.curves.get(metric.name, NOTHING) for run in members],
            members[0].staleness,
            metric.log,
            metric.limits,
            smooth=metric.log or not metric.is_drawn_raw,
        )
        for cell, members in cells.items()
        for metric in metrics
    }
    shown = [(column.metric, column.statistic) for column in COLUMNS]
    results: dict[ResultKey, Result] = {}
    for name, statistic in dict.fromkeys([*product((metric.name for metric in metrics), STATISTICS), *shown]):
        results |= _results(cells, chosen, name, statistic)
    adjusted = holm([result.p_value for result in results.values()])
    results = {
        key: replace(result, p_adjusted=p) for (key, result), p in zip(results.items(), adjusted, strict=True)
    }
    return Comparison(
        runs=list(runs),
        settings=settings,
        conditions=conditions,
        reference=chosen,
        metrics=metrics,
        cells=cells,
        results=results,
        curves=curves,
        differing=differing_keys(usable, settings),
        notes=_unlike_runs(usable, conditions),
        limits=_limits(cells, curves, metrics),
    )


def _results(
    cells: Mapping[Cell, Sequence[Run]], reference: str, metric: str, statistic: str
) -> dict[ResultKey, Result]:
    values = {
        cell: {
            run.seed: number for run in runs if (number := statistic_of(run, metric, statistic)) is not None
        }
        for cell, runs in cells.items()
    }
    step = max(run.resolution for runs in cells.values() for run in runs) if metric == HELD_OUT else 0.0
    results = {}
    for (setting, condition), by_seed in values.items():
        against = {} if setting == reference else values.get((reference, condition), {})
        results[setting, condition, metric, statistic] = Result(
            by_seed,
            value=mean_interval(list(by_seed.values()), step),
            difference=paired_difference(by_seed, against, step),
            p_value=paired_p_value(by_seed, against, step),
            within=metric_of(metric).equal_within,
            resolution=step,
        )
    return results


def _unlike_runs(usable: Sequence[Run], conditions: Sequence[str]) -> list[str]:
    notes = []
    named = {key for run in usable for key in run.setting_keys}
    for condition in conditions:
        peers = [run for run in usable if run.condition == condition]
        where = f"staleness {condition}: the runs"
        if parts := _differing_parts(peers, named):
            notes.append(f"{where} differ in more than the algorithm: {', '.join(parts)}")
        if _differing(updates := [run.summary["updates"] for run in peers]):
            notes.append(f"{where} have different numbers of updates: {min(updates)} to {max(updates)}")
    return notes


def _limits(
    cells: Mapping[Cell, Sequence[Run]],
    curves: Mapping[tuple[str, str, str], MeanCurve],
    metrics: Sequence[Metric],
) -> list[str]:
    notes = []
    for (setting, condition), cell in cells.items():
        where = f"{setting} at staleness {condition}"
        if len(cell) == 1:
            notes.append(f"{where}: one seed only, so there is neither an interval nor a test")
        shortest, longest = curves[setting, condition, "train/reward"].last_recorded
        if shortest != longest:
            notes.append(
                f"{where}: curves end at update {shortest}, with the shortest of its runs; the longest "
                f"continues to {longest}"
            )
        for metric in metrics:
            without = [run.seed for run in cell if not run.curves.get(metric.name, NOTHING)[1]]
            if without and (metric in EXPECTED or len(without) < len(cell)):
                runs = "any run" if len(without) == len(cell) else f"seeds {without}"
                notes.append(f"{where}: {metric.title} was not recorded by {runs}")
    return notes


def _differing_parts(peers: Sequence[Run], named: set[str]) -> list[str]:
    tables = [dict(leaves(run.config)) for run in peers]
    keys = {key for table in tables for key in table if key not in named and should_be_alike(key)}
    columns = {key: [table.get(key) for table in tables] for key in keys}
    seeds = [run.seed for run in peers]
    return sorted(
        {key.partition(".")[0] for key, values in columns.items() if _differing(values) and values != seeds}
    )


def _differing(values: Sequence[object]) -> bool:
    return len({json.dumps(value, sort_keys=True, default=str) for value in values}) > 1
