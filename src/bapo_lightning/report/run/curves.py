"""Curves of a run by name: the metrics it recorded, and those that follow from several; moving averages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from bapo_lightning.report.metrics import HELD_OUT, HIGH_RAISED, LOW_RAISED
from bapo_lightning.run_folder.record import RunRecord

Curve = tuple[list[int], list[float]]  # updates, values
_SIDES = {HIGH_RAISED: "high", LOW_RAISED: "low"}
_BOUND_TOLERANCE = 1e-6  # bounds are logged from float32


def recorded_names(record: RunRecord) -> set[str]:
    """Names of all metrics that a run recorded, whatever their values."""
    return {name for row in record.rows for name in row} - {"step"}


def series(record: RunRecord, metric: str) -> Curve:
    """(updates, values) of a metric, of `HELD_OUT`, `HIGH_RAISED` or `LOW_RAISED`."""
    if metric in _SIDES:
        return raised(record, _SIDES[metric])
    return held_out(record) if metric == HELD_OUT else record.series(metric)


def held_out(record: RunRecord, statistic: str = "avg") -> Curve:
    """Mean of avg@k or pass@k, each set's largest k, over the updates that measured all validation sets."""
    largest = _largest_k(record, statistic)
    tables = [dict(zip(*record.series(f"{kind}@{k}"), strict=True)) for kind, k in sorted(largest.items())]
    steps = sorted(set.intersection(*map(set, tables))) if tables else []
    return steps, [fmean(table[step] for table in tables) for step in steps]


def held_out_resolution(record: RunRecord) -> float:
    """Least step of `held_out`: 1/(P k) of the largest set, over their number; 0 where P is not recorded."""
    sets = (record.manifest.get("problems") or {}).get("validation") or {}
    answers = [
        k * sets.get(kind.split("/")[1], {}).get("kept", 0) for kind, k in _largest_k(record, "avg").items()
    ]
    return 1 / (len(answers) * max(answers)) if answers and min(answers) else 0.0


def _largest_k(record: RunRecord, statistic: str) -> dict[str, int]:
    """val/<set>/<statistic> -> its largest k."""
    largest: dict[str, int] = {}
    for name in {name for name in recorded_names(record) if name.startswith("val/")}:
        kind, _, k = name.rpartition("@")
        if kind.endswith(f"/{statistic}") and k.isdecimal():
            largest[kind] = max(int(k), largest.get(kind, 0))
    return largest


def raised(record: RunRecord, side: str) -> Curve:
    """1 at every update in which the bound lay above its start, else 0; empty where the start is not known.

    The mean is the share of the updates that raised it; a mean of bounds is a value hardly ever chosen.
    """
    bound = (record.config.get("algorithm", {}).get("bounds") or {}).get(side)
    start = bound.get("start") if isinstance(bound, dict) else bound  # of a search, or a fixed bound
    if start is None:
        return [], []
    steps, values = record.series(f"bapo/clip_{side}")
    return steps, [float(value > start + _BOUND_TOLERANCE) for value in values]


def moving_average(
    values: Sequence[float], window: int, middle: Callable[[Sequence[float]], float] = fmean
) -> list[float]:
    """Centred moving average (or median) of the same length; at both ends the window shrinks."""
    half = window // 2
    return [middle(values[max(0, index - half) : index - half + window]) for index in range(len(values))]


def smoothing_window(count: int, period: int = 1) -> int:
    """Updates to average over: a fifteenth of `count`, in whole periods (rollout batches) if two of them fit.

    Updates on one rollout batch differ by age; a window that cuts through a batch would show its saw-tooth.
    """
    if not 1 < period <= count // 2:
        return 2 * (count // 30) + 1
    return period * max(1, round(count / (15 * period)))
