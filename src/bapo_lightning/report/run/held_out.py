"""Held-out accuracy as one curve, however many validation sets a run has."""

from __future__ import annotations

from statistics import fmean

from bapo_lightning.run_folder.record import RunRecord

HELD_OUT = "val/avg@k"  # the name of `held_out` beside the metrics of metrics.jsonl


def series(record: RunRecord, metric: str) -> tuple[list[int], list[float]]:
    """(updates, values) of a metric, or of `HELD_OUT`."""
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
