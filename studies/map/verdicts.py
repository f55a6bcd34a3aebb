"""Verdicts of the map's cells: which pass the gate, and how methods compare in them.

The gate looks at fixed bounds alone, on seeds of its own: data of the newest policy must be better than stale
data, and the fixed bounds of the gate must differ from the reference. A cell that fails it cannot tell
methods apart. The rules are those of every page (`report.paired`): comparisons are paired by seed,
p-values are adjusted over all comparisons of the map, and a difference within `EQUAL_WITHIN` is equal, also
at the gate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from bapo_lightning.report.intervals import Interval, mean_interval
from bapo_lightning.report.paired import EQUAL_WITHIN, holm, paired_difference, paired_p_value, verdict_of
from studies.map.cells import FRESH, MapCell, Measured, read_measured
from studies.map.ratios import RatioInterval, ratio_interval

Pair = tuple[str, str, np.ndarray, np.ndarray]  # two methods, and a value of each seed for each
COLLAPSED = 0.5  # the reward ends below this share of its best


@dataclass(frozen=True)
class GateResult:
    """Differences in area that a cell must show before it is asked anything."""

    differences: Mapping[str, Interval]  # what -> interval

    @property
    def is_passed(self) -> bool:
        """Whether staleness costs something, and bounds make a difference, by more than counts as equal."""
        cost, *others = self.differences.values()
        return cost.mean > 0 and all(
            each.excludes_zero and abs(each.mean) > EQUAL_WITHIN for each in (cost, *others)
        )


@dataclass(frozen=True)
class MethodSummary:
    """One method in one cell, means over seeds."""

    area: Interval
    final: Interval
    entropy_at_quarter: Interval
    pass_at_k_gain: Interval  # pass@k - pass@1 at the end
    collapse_rate: float  # share of the seeds whose reward ends below half its best
    clip_fraction_positive: float | None
    natural_share: float | None  # of positive tokens, without clipping
    rests: float | None  # share of the searches that stay where they start; None without a search
    ends: float | None  # share of the searches that run to their end


@dataclass(frozen=True)
class PairedComparison:
    """Difference in area of two methods in one cell."""

    method: str
    against: str
    difference: Interval
    p: float | None
    adjusted: float | None  # p-value, adjusted over all comparisons of the page

    @property
    def verdict(self) -> str:
        return verdict_of(self.difference, self.adjusted, EQUAL_WITHIN)


@dataclass(frozen=True)
class CellResult:
    cell: MapCell
    gate: GateResult
    figures: Mapping[str, MethodSummary]  # by method, fresh data among them
    comparisons: tuple[PairedComparison, ...]
    # Share of the cost of staleness that a method makes good; None where it may cost nothing.
    gap_closed: Mapping[str, RatioInterval | None]

    def comparison(self, method: str, against: str) -> PairedComparison:
        return next(item for item in self.comparisons if (item.method, item.against) == (method, against))

    def plain(self) -> dict[str, Any]:
        """Everything as plain values, with the verdicts that follow from it."""
        values = asdict(self)
        values["gate"]["is_passed"] = self.gate.is_passed
        for entry, comparison in zip(values["comparisons"], self.comparisons, strict=True):
            entry["verdict"] = comparison.verdict
        return values


def read_results(
    folder: Path,
    cells: Sequence[MapCell],
    methods: Sequence[str],
    gate: Sequence[str],
    controls: Sequence[str],
) -> list[CellResult]:
    """Reads all cells."""
    read = {cell: _read(folder, cell, [FRESH, *methods]) for cell in cells}
    pairs = [(one, other) for other in (methods[0], *controls) for one in methods if one != other]
    compared = compare(
        [(one, other, read[cell][one].area, read[cell][other].area) for cell in cells for one, other in pairs]
    )
    return [
        CellResult(
            cell=cell,
            gate=_gate(_read(folder, cell, [FRESH, methods[0], *gate], gate=True), methods[0], gate),
            figures={name: _figures(item) for name, item in read[cell].items()},
            comparisons=tuple(compared[number * len(pairs) : (number + 1) * len(pairs)]),
            gap_closed={
                name: gap_closed(read[cell][name], read[cell][FRESH], read[cell][methods[0]])
                for name in methods[1:]
            },
        )
        for number, cell in enumerate(cells)
    ]


def compare(pairs: Sequence[Pair]) -> list[PairedComparison]:
    """Compares methods by seed, and adjusts the p-values over all pairs, which are those of a page (Holm)."""
    sides = [(by_seed(values), by_seed(others)) for _, _, values, others in pairs]
    p_values = [paired_p_value(*both) for both in sides]
    return [
        PairedComparison(method, against, certain(paired_difference(*both)), p, adjusted)
        for (method, against, *_), both, p, adjusted in zip(
            pairs, sides, p_values, holm(p_values), strict=True
        )
    ]


def by_seed(values: np.ndarray) -> dict[int, float]:
    return dict(enumerate(values.tolist()))


def _read(folder: Path, cell: MapCell, names: Sequence[str], gate: bool = False) -> dict[str, Measured]:
    return {name: read_measured(folder, cell, name, gate) for name in names}


def _gate(measured: Mapping[str, Measured], reference: str, names: Sequence[str]) -> GateResult:
    areas = {name: by_seed(item.area) for name, item in measured.items()}
    differences = {f"{FRESH} - {reference}": certain(paired_difference(areas[FRESH], areas[reference]))}
    for name in names:
        differences[f"{name} - {reference}"] = certain(paired_difference(areas[name], areas[reference]))
    return GateResult(differences)


def _figures(item: Measured) -> MethodSummary:
    best = item.curves["reward"].max(1)
    return MethodSummary(
        area=interval_of(item.area),
        final=interval_of(item.final),
        entropy_at_quarter=interval_of(item.at("entropy", 0.25)),
        pass_at_k_gain=interval_of(item.curves["pass_at_k"][:, -1] - item.final),
        collapse_rate=float((item.final < COLLAPSED * best).mean()),
        clip_fraction_positive=item.mean("clip_fraction_positive"),
        natural_share=item.mean("positive_share_unclipped"),
        rests=item.mean("rests"),
        ends=item.mean("ends"),
    )


def gap_closed(method: Measured, fresh: Measured, reference: Measured) -> RatioInterval | None:
    """Share of the mean gap of fresh and stale data that a method closes; None where there may be none."""
    numerators, gaps = (method.area - reference.area).tolist(), (fresh.area - reference.area).tolist()
    return ratio_interval(numerators, gaps) if fmean(gaps) > 0 else None


def interval_of(values: np.ndarray) -> Interval:
    return certain(mean_interval(values.tolist()))


def certain(interval: Interval | None) -> Interval:
    assert interval is not None, "at least two seeds are asked for"
    return interval
