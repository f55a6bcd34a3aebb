"""Several runs as numbers: statistics per setting and condition with intervals, differences paired by seed
with p-values, mean curves.

    folders -> collect -> runs -> compare -> Comparison -> console (table), picture (PNG), page (HTML), files
    (CSV, JSON)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bapo_lightning.errors import DataError
from bapo_lightning.report.comparison.mean_curve import MeanCurve, mean_curve
from bapo_lightning.report.comparison.notes import limits, unlike_runs
from bapo_lightning.report.comparison.quantities import COMPARED, METRIC_NAMES, Column, statistic_of
from bapo_lightning.report.comparison.runs import Run
from bapo_lightning.report.comparison.settings import (
    choose_reference,
    conditions_in_order,
    differing_keys,
    settings_in_order,
)
from bapo_lightning.report.intervals import Interval, holm, mean_interval, paired_difference, paired_p_value
from bapo_lightning.report.plot_style import setting_colours

Cell = tuple[str, str]  # setting, condition


@dataclass(frozen=True)
class Result:
    """One statistic of one metric for a setting under a condition, and its difference to the reference,
    paired by seed.
    """

    setting: str
    condition: str
    metric: str
    statistic: str
    by_seed: Mapping[int, float]
    value: Interval | None
    difference: Interval | None
    p_value: float | None  # of the paired t-test
    p_adjusted: float | None = None  # for all comparisons of this metric and statistic (Holm)

    @property
    def is_significant(self) -> bool:
        """Whether the adjusted p-value is below 5 %."""
        return self.p_adjusted is not None and self.p_adjusted < 0.05


@dataclass(frozen=True)
class Comparison:
    """Everything that tables, page and pictures show."""

    runs: list[Run]  # all, those left out included
    settings: list[str]
    conditions: list[str]
    reference: str
    cells: dict[Cell, list[Run]]  # usable runs, condition by condition
    results: dict[tuple[str, str, str, str], Result]  # by (setting, condition, metric, statistic)
    curves: dict[tuple[str, str, str], MeanCurve]  # by (setting, condition, metric)
    differing: dict[str, dict[str, str]]  # key of the configuration -> value by setting
    notes: list[str]  # on runs that are not alike where they should be
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
        return [*(f"left out: {run.path}: {run.problem}" for run in self.left_out), *self.notes]

    @property
    def colours(self) -> dict[str, str]:
        """Colour of each setting, in their order."""
        return setting_colours({run.setting: run.algorithm for run in self.usable}, self.settings)

    def result(self, cell: Cell, column: Column) -> Result:
        """The result that a column of the short table shows."""
        return self.results[(*cell, column.metric, column.statistic)]

    def is_compared(self, cell: Cell) -> bool:
        """Whether differences are taken for a cell: it is not the reference, which has runs there."""
        setting, condition = cell
        return setting != self.reference and (self.reference, condition) in self.cells


def compare(runs: Sequence[Run], reference: str | None = None) -> Comparison:
    """Compares runs that were collected with `METRIC_NAMES`.

    Raises:
        DataError: no run can be compared, or none has the setting `reference`.
    """
    usable = [run for run in runs if run.problem is None]
    if not usable:
        reasons = "\n  ".join(f"{run.path}: {run.problem}" for run in runs) or "no folder was given"
        raise DataError(f"no finished run to compare:\n  {reasons}")
    chosen = choose_reference(usable, reference)
    conditions, settings = conditions_in_order(usable), settings_in_order(usable)
    members = {
        (setting, condition): [run for run in usable if (run.setting, run.condition) == (setting, condition)]
        for condition in conditions
        for setting in settings
    }
    cells = {cell: found for cell, found in members.items() if found}
    curves = {
        (*cell, metric): mean_curve([run.curves[metric] for run in found], found[0].staleness)
        for cell, found in cells.items()
        for metric in METRIC_NAMES
    }
    results = [
        result for metric, statistic in COMPARED for result in _results(cells, chosen, metric, statistic)
    ]
    return Comparison(
        runs=list(runs),
        settings=settings,
        conditions=conditions,
        reference=chosen,
        cells=cells,
        results={
            (result.setting, result.condition, result.metric, result.statistic): result for result in results
        },
        curves=curves,
        differing=differing_keys(usable, settings),
        notes=unlike_runs(usable, conditions),
        limits=limits(cells, curves),
    )


def _results(
    cells: Mapping[Cell, Sequence[Run]], reference: str, metric: str, statistic: str
) -> list[Result]:
    """Results of all cells for one statistic of one metric, adjusted together."""
    values = {
        cell: {
            run.seed: number for run in runs if (number := statistic_of(run, metric, statistic)) is not None
        }
        for cell, runs in cells.items()
    }
    results = []
    for (setting, condition), by_seed in values.items():
        against = {} if setting == reference else values.get((reference, condition), {})
        results.append(
            Result(
                setting, condition, metric, statistic, by_seed,
                value=mean_interval(list(by_seed.values())),
                difference=paired_difference(by_seed, against),
                p_value=paired_p_value(by_seed, against),
            )
        )  # fmt: skip
    adjusted = holm([result.p_value for result in results])
    return [replace(result, p_adjusted=p) for result, p in zip(results, adjusted, strict=True)]
