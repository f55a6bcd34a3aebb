"""Curves of a run by name: recorded metrics and those computed from several; moving averages."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from bapo_lightning.report.metrics import HELD_OUT, HIGH_RAISED, LOW_RAISED
from bapo_lightning.system.run_folder.record import Curve, RunRecord

Values = Sequence[float] | NDArray[np.float64]
_SIDES = {HIGH_RAISED: "high", LOW_RAISED: "low"}
_BOUND_TOLERANCE = 1e-6  # bounds are logged from float32


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
    """Smallest step of `held_out`: 1/(P k) of the largest set, over their number; 0 if P is not recorded."""
    sets = (record.manifest.get("problems") or {}).get("validation") or {}
    largest = _largest_k(record, "avg").items()
    answers = [k * sets.get(kind.split("/")[1], {}).get("kept", 0) for kind, k in largest]
    return 1 / (len(answers) * max(answers)) if answers and min(answers) else 0.0


def _largest_k(record: RunRecord, statistic: str) -> dict[str, int]:
    """val/<set>/<statistic> -> its largest k."""
    largest: dict[str, int] = {}
    for name in record.columns:
        kind, _, k = name.rpartition("@")
        if kind.startswith("val/") and kind.endswith(f"/{statistic}") and k.isdecimal():
            largest[kind] = max(int(k), largest.get(kind, 0))
    return largest


def raised(record: RunRecord, side: str) -> Curve:
    """1 at updates in which the bound lay above its start, else 0, for a mean; empty if it is unknown."""
    bound = (record.config.get("algorithm", {}).get("bounds") or {}).get(side)
    start = bound.get("start") if isinstance(bound, dict) else bound  # of a search, or a fixed bound
    if start is None:
        return [], []
    steps, values = record.series(f"bapo/clip_{side}")
    return steps, [float(value > start + _BOUND_TOLERANCE) for value in values]


def window_means(values: Values, window: int) -> NDArray[np.float64]:
    """Means of all windows that fit into the values (at least one), in time proportional to their number.

    Each sum is the end of one block of `window` values and the beginning of the next: a running sum over all
    values would keep the rounding of every earlier large value.
    """
    count, blocks = len(values), -(-len(values) // window)
    padded = np.zeros((blocks, window))
    padded.reshape(-1)[:count] = values
    from_start, to_end = padded.cumsum(1).ravel(), padded[:, ::-1].cumsum(1)[:, ::-1].ravel()
    fit = count - window + 1
    is_block = np.arange(fit) % window == 0
    return (np.where(is_block, 0.0, to_end[:fit]) + from_start[window - 1 : count]) / window


def moving_average(values: Values, window: int) -> list[float]:
    """Centred moving average of the same length; at both ends the window shrinks."""
    count, half = len(values), window // 2
    if count <= window:
        return [fmean(values[max(0, at - half) : at - half + window]) for at in range(count)]
    known, after = np.asarray(values), window - 1 - half  # values of a window after its middle one
    begin = known[: window - 1].cumsum()[after:] / np.arange(after + 1, window)
    end = known[count - window + 1 :][::-1].cumsum()[::-1][:after] / np.arange(window - 1, half, -1)
    return [*begin.tolist(), *window_means(values, window).tolist(), *end.tolist()]


def moving_median(values: Values, window: int) -> list[float]:
    """Centred moving median of the same length; at both ends the window shrinks."""
    half, inside, medians = window // 2, list[float](), list[float]()
    for entering in range(len(values) + window - 1 - half):
        if entering < len(values):
            insort(inside, values[entering])
        if entering >= window:
            del inside[bisect_left(inside, values[entering - window])]
        if entering >= window - 1 - half:
            middle = len(inside) // 2
            medians.append((inside[middle] + inside[~middle]) / 2)
    return medians


def stretch_of(count: int, most: int) -> int:
    """Length of the stretches of `count` values that leave at most `most` (4 or more) extremes and ends."""
    return 1 if count <= most else -(-count // (most // 2 - 1))


def kept_places(values: Values, most: int) -> list[int]:
    """Places of at most `most` values: all, or the first, the last, and the extremes of each stretch."""
    count = len(values)
    if (stretch := stretch_of(count, most)) == 1:
        return [*range(count)]
    known, places = np.asarray(values), {0, count - 1}
    for begin in range(0, count, stretch):
        part = known[begin : begin + stretch]
        places |= {begin + int(part.argmin()), begin + int(part.argmax())}
    return sorted(places)


def even_places(count: int, most: int) -> list[int]:
    """At most `most` places at equal distances, including the last one."""
    return [*range(count)[:: -(-(-count // most) or 1)][::-1]]


def extremes_around(values: Values, places: Sequence[int]) -> tuple[list[float], list[float]]:
    """The smallest and the largest of the values that are nearest to each of some ascending places."""
    if not places:
        return [], []
    begins = [0, *((before + place + 1) // 2 for before, place in pairwise(places))]
    least, largest = (side.reduceat(np.asarray(values), begins) for side in (np.minimum, np.maximum))
    return least.tolist(), largest.tolist()


def window_of(steps: Sequence[int], period: int) -> int:
    """`smoothing_window` of a curve with values at `steps`; `period` also counts updates without values."""
    spacing = (steps[-1] - steps[0]) / (len(steps) - 1) if len(steps) > 1 else 1.0
    return smoothing_window(len(steps), round(period / spacing))


def smoothing_window(count: int, period: int = 1) -> int:
    """Values to average over: a fifteenth of `count`, in whole periods (rollout batches) if two of them fit.

    Updates on one rollout batch differ by age; a window that cuts through a batch would show its saw-tooth.
    """
    if not 1 < period <= count // 2:
        return 2 * (count // 30) + 1
    return period * max(1, round(count / (15 * period)))
