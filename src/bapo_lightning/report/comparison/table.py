"""What a comparison of runs says, as numbers: statistics per setting with intervals, differences paired by
seed with p-values, curves.

folders -> study.collect -> compare -> Comparison -> comparison_page (HTML), comparison_files (CSV, PNG)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from bapo_lightning.errors import DataError
from bapo_lightning.report.comparison.mean_curve import MeanCurve, mean_curve
from bapo_lightning.report.comparison.study import (
    HELD_OUT,
    Run,
    cell_of,
    conditions,
    reference_setting,
    settings,
    study_notes,
)
from bapo_lightning.report.intervals import Interval, holm, mean_interval, paired_difference, paired_p_value
from bapo_lightning.report.run.summary import moving_average
from bapo_lightning.run_folder.config_keys import leaves, value_text


@dataclass(frozen=True)
class Quantity:
    """A metric that is compared."""

    metric: str  # its name in metrics.jsonl, or `HELD_OUT`
    title: str
    unit: str
    extreme: str  # best, lowest, largest: what the extreme of its moving average is called
    spiky: bool = False  # rare large values matter: the extreme is the largest value itself

    @property
    def takes_least(self) -> bool:
        """Whether the extreme is the least value."""
        return self.extreme == "lowest"


QUANTITIES = (
    Quantity("train/reward", "Training reward", "mean per sample", "best"),
    Quantity(HELD_OUT, "Held-out accuracy", "avg@k, mean over the sets", "best"),
    Quantity("policy/entropy", "Policy entropy", "nats per token", "lowest"),
    Quantity("bapo/positive_share", "Positive share of the gradient", "fraction", "lowest"),
    Quantity("train/grad_norm", "Gradient norm", "L2, before clipping", "largest", spiky=True),
    Quantity("train/clip_fraction", "Clipped tokens", "fraction", "largest"),
    Quantity("bapo/clip_high", "Upper bound", "importance ratio", "largest"),
    Quantity("bapo/clip_low", "Lower bound", "importance ratio", "largest"),
    Quantity("policy/approx_kl", "KL to the behaviour policy", "nats per token, k3", "largest"),
    Quantity("train/response_length", "Response length", "tokens", "largest"),
)
METRIC_NAMES = tuple(quantity.metric for quantity in QUANTITIES)
STATISTICS = {
    "final": "mean of the last tenth",
    "extreme": "best or most extreme moving average",
    "mean": "mean over the whole run",
}


@dataclass(frozen=True)
class Result:
    """One quantity and statistic of one setting under one condition, and its difference to the reference,
    paired by seed.
    """

    setting: str
    condition: str
    metric: str
    statistic: str
    value: Interval | None
    difference: Interval | None
    p_value: float | None  # of the paired t-test
    p_adjusted: float | None  # for all comparisons of this metric and statistic (Holm)

    @property
    def is_significant(self) -> bool:
        """At the level of 5 % after the adjustment."""
        return self.p_adjusted is not None and self.p_adjusted < 0.05


@dataclass(frozen=True)
class Comparison:
    """Everything that the page shows."""

    runs: list[Run]  # all, also those left out
    usable: list[Run]
    settings: list[str]
    conditions: list[str]
    reference: str
    results: dict[tuple[str, str, str, str], Result]  # by (setting, condition, metric, statistic)
    curves: dict[tuple[str, str, str], MeanCurve]  # by (setting, condition, metric)
    differing: dict[str, dict[str, str]]  # key of the configuration -> value by setting
    notes: list[str]


def compare(runs: Sequence[Run], reference: str | None = None) -> Comparison:
    """Compare runs collected with `METRIC_NAMES`.

    Raises:
        DataError: no run can be compared, or none has the setting `reference`.
    """
    usable = [run for run in runs if run["problem"] is None]
    if not usable:
        reasons = "\n  ".join(f"{run['path']}: {run['problem']}" for run in runs) or "no folder was given"
        raise DataError(f"no finished run to compare:\n  {reasons}")
    chosen = reference_setting(usable, reference)
    found, order = conditions(usable), settings(usable)
    curves = {
        (setting, condition, metric): mean_curve(
            [run["curves"][metric] for run in cell], cell[0]["staleness"]
        )
        for setting in order
        for condition in found
        for metric in METRIC_NAMES
        if (cell := cell_of(usable, setting, condition))
    }
    results = [
        result
        for quantity in QUANTITIES
        for statistic in STATISTICS
        for result in _results(usable, order, found, quantity, statistic, chosen)
    ]
    return Comparison(
        runs=list(runs),
        usable=usable,
        settings=order,
        conditions=found,
        reference=chosen,
        results={
            (result.setting, result.condition, result.metric, result.statistic): result for result in results
        },
        curves=curves,
        differing=differing_keys(usable, order),
        notes=[*study_notes(runs), *_footnotes(usable, order, found, curves)],
    )


def statistic_of(run: Run, quantity: Quantity, statistic: str) -> float | None:
    """One number of a run; None where the metric was not recorded."""
    values = run["curves"][quantity.metric][1]
    if not values:
        return None
    averages = moving_average(values, max(1, len(values) // 10))
    if statistic == "final":
        return averages[-1]
    if statistic == "mean":
        return fmean(values)
    if quantity.spiky:
        return max(values)
    return min(averages) if quantity.takes_least else max(averages)


def differing_keys(usable: Sequence[Run], order: Sequence[str]) -> dict[str, dict[str, str]]:
    """Configuration keys in which settings differ -> value by setting; several values of one setting are
    joined, absent ones are "-".

    Left out is what says where a run writes and with which seed.
    """
    places = {"seed", "run_folder", "output_root", "resume", "logger"}
    tables = {
        setting: [dict(leaves(run["config"])) for run in usable if run["setting"] == setting]
        for setting in order
    }
    keys = dict.fromkeys(
        key
        for group in tables.values()
        for table in group
        for key in table
        if key.partition(".")[0] not in places
    )
    rows = {
        key: {
            setting: ", ".join(
                dict.fromkeys(value_text(table[key]) if key in table else "-" for table in group)
            )
            for setting, group in tables.items()
        }
        for key in keys
    }
    return {
        key: values
        for key, values in rows.items()
        if len(set(values.values())) > 1 or any(", " in text for text in values.values())
    }


def _results(
    usable: Sequence[Run],
    order: list[str],
    found: list[str],
    quantity: Quantity,
    statistic: str,
    reference: str,
) -> list[Result]:
    results = []
    for condition in found:
        against = _by_seed(cell_of(usable, reference, condition), quantity, statistic)
        for setting in order:
            cell = cell_of(usable, setting, condition)
            if not cell:
                continue
            values = _by_seed(cell, quantity, statistic)
            compared: Mapping[int, float] = {} if setting == reference else against
            difference, p_value = paired_difference(values, compared), paired_p_value(values, compared)
            value = mean_interval(list(values.values()))
            results.append(
                Result(setting, condition, quantity.metric, statistic, value, difference, p_value, None)
            )
    adjusted = holm([result.p_value for result in results])
    return [replace(result, p_adjusted=p) for result, p in zip(results, adjusted, strict=True)]


def _by_seed(cell: Sequence[Run], quantity: Quantity, statistic: str) -> dict[int, float]:
    numbers = {run["seed"]: statistic_of(run, quantity, statistic) for run in cell}
    return {seed: number for seed, number in numbers.items() if number is not None}


def _footnotes(
    usable: Sequence[Run],
    order: list[str],
    found: list[str],
    curves: Mapping[tuple[str, str, str], MeanCurve],
) -> list[str]:
    """What limits the comparison: one seed only, curves that end early, metrics that some runs lack."""
    notes = []
    for condition in found:
        for setting in order:
            cell = cell_of(usable, setting, condition)
            if not cell:
                continue
            where = f"{setting} at staleness {condition}"
            if len(cell) == 1:
                notes.append(f"{where}: one seed only, so there is neither an interval nor a test")
            shortest, longest = curves[setting, condition, "train/reward"].last_recorded
            if shortest != longest:
                notes.append(
                    f"{where}: curves end at update {shortest}, with the shortest of its runs; the longest "
                    f"goes on to {longest}"
                )
            lacking = {
                quantity.title: [run["seed"] for run in cell if not run["curves"][quantity.metric][1]]
                for quantity in QUANTITIES
            }
            notes += [
                f"{where}: {title} was not recorded by "
                f"{'any run' if len(seeds) == len(cell) else f'seeds {seeds}'}"
                for title, seeds in lacking.items()
                if seeds
            ]
    return notes


def damage(run: Mapping[str, Any]) -> dict[str, int]:
    """Counts of what went wrong in a run or was dropped, zeros left out."""
    summary = run.get("summary") or {}
    counts = {kind.replace("_", " "): count for kind, count in (summary.get("drops") or {}).items()}
    counts |= {
        name.replace("_", " "): summary.get(name)
        for name in ("skipped_updates", "non_finite_values", "unreadable_lines", "rolled_back_rows")
    }
    counts |= {"resumes": len((run.get("manifest") or {}).get("resumes", []))}
    return {name: count for name, count in counts.items() if count}
