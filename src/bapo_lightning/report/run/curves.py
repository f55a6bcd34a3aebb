"""Curves of a run by name: the metrics it recorded, and those that follow from several of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from bapo_lightning.run_folder.record import RunRecord

HELD_OUT = "val/avg@k"  # held-out accuracy as one curve, however many validation sets a run has
HIGH_RAISED, LOW_RAISED = "bapo/clip_high_raised", "bapo/clip_low_raised"
SPIKY = {"train/grad_norm"}  # rare large values matter: means are geometric, axes logarithmic
_SIDES = {HIGH_RAISED: "high", LOW_RAISED: "low"}
_BOUND_TOLERANCE = 1e-6  # bounds are logged from float32
_SHARES = {
    *(HIGH_RAISED, LOW_RAISED, "bapo/positive_share", "bapo/positive_token_fraction", "bapo/target_met"),
    "train/clip_fraction",
}


def limits_of(metric: str) -> tuple[float, float] | None:
    """Least and largest value that a metric of a comparison or figure can have; None for the reward, which
    may be a function of one's own.
    """
    if metric == "train/reward":
        return None
    is_share = metric in _SHARES or "@" in metric or ("_share" in metric and metric.startswith("turns/"))
    return (0.0, 1.0) if is_share else (0.0, math.inf)


def series(record: RunRecord, metric: str) -> tuple[list[int], list[float]]:
    """(updates, values) of a metric, of `HELD_OUT`, `HIGH_RAISED` or `LOW_RAISED`."""
    if metric in _SIDES:
        return raised(record, _SIDES[metric])
    return held_out(record) if metric == HELD_OUT else record.series(metric)


def held_out(record: RunRecord, statistic: str = "avg") -> tuple[list[int], list[float]]:
    """Mean of avg@k or pass@k over the validation sets, for the largest k of each, at the updates at which
    all of them were measured.
    """
    largest: dict[str, int] = {}
    for name in {name for row in record.rows for name in row if name.startswith("val/")}:
        kind, _, k = name.rpartition("@")
        if kind.endswith(f"/{statistic}"):
            largest[kind] = max(int(k), largest.get(kind, 0))
    tables = [dict(zip(*record.series(f"{kind}@{k}"), strict=True)) for kind, k in sorted(largest.items())]
    steps = sorted(set.intersection(*map(set, tables))) if tables else []
    return steps, [fmean(table[step] for table in tables) for step in steps]


def raised(record: RunRecord, side: str) -> tuple[list[int], list[float]]:
    """1 at every update in which the bound lay above its start, else 0; empty where the start is not known.

    A search ends at either end of its path in most updates, so that a mean of bounds is a value that it
    hardly ever chose. The mean of these numbers is the share of the updates that raised the bound.
    """
    start = bound_start(record.config, side)
    steps, values = record.series(f"bapo/clip_{side}")
    return ([], []) if start is None else (steps, [float(is_raised(value, start)) for value in values])


def bound_start(config: Mapping[str, Any], side: str) -> float | None:
    """Value that a bound starts from in every update: the start of its search, or the fixed bound itself."""
    bound = config.get("algorithm", {}).get("bounds", {}).get(side)
    return bound.get("start") if isinstance(bound, dict) else bound


def is_raised(value: float, start: float) -> bool:
    """Whether a bound lies above its start."""
    return value > start + _BOUND_TOLERANCE
