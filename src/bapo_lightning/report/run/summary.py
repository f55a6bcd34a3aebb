"""The final numbers of a run: `summary.json`. A quantity that was never recorded is None or absent,
never zero, so that a missing metric cannot pass for a measured one.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from bapo_lightning.report.metrics import (
    CATALOGUE,
    EXPECTED,
    HEADLINES,
    PANELS,
    TARGET_MET,
    Metric,
    metric_of,
)
from bapo_lightning.report.run.curves import series, window_means
from bapo_lightning.report.run.recorded import find_recorded, part_edges, values_by_part
from bapo_lightning.system.run_folder.record import Row, RunRecord, finite, read_run
from bapo_lightning.system.run_folder.text_file import write_json

TIME_PARTS = tuple(row.name[len("time/") : -len("_seconds")] for row in CATALOGUE if row.group == "time")
CONCURRENT = ("rollout", "reward")  # run in separate threads if generation is asynchronous
DROP_KINDS = tuple(row.name.removeprefix("rollout/") for row in CATALOGUE if row.group == "drops")
IRREGULARITIES = ("skipped_updates", "non_finite_values", "unreadable_lines", "rolled_back_rows")
IDENTITY = ("experiment", "algorithm", "regime", "seed", "staleness", "status", "started_at")


def summarise(record: RunRecord) -> dict[str, Any]:
    """JSON-ready summary, every value finite or None, whatever is missing."""
    values = defaultdict(list, {name: column for name, (_, column) in record.columns.items()})
    return {
        **{key: record.manifest.get(key) for key in (*IDENTITY, "problems")},
        "ending": record.ending,
        "updates": len(record.rows),
        "planned_updates": record.num_planned,
        "skipped_updates": _last_count(values["train/skipped_updates"]),
        "samples": _last_count(values["progress/samples"]),
        "tokens": _last_count(values["progress/tokens"]),
        "updates_without_gradient": sum(norm == 0 for norm in values["train/grad_norm"]),
        "metrics": _metrics(record),
        "seconds": _seconds(values, record),
        "beside_training": overlapped_parts(record),
        "age_bound": _age_bound(values["staleness/age_max"], record),
        "idle": _idle_shares(values, is_async=bool(overlapped_parts(record))),
        "rollout_tokens_per_second": _tokens_per_second(record.rows, values["rollout/tokens_per_second"]),
        "drops": {
            name: round(math.fsum(counts)) if (counts := values[f"rollout/{name}"]) else None
            for name in DROP_KINDS
        },
        "non_finite_values": sum(
            isinstance(value, float) and not math.isfinite(value)
            for row in record.rows
            for value in row.values()
        ),
        "compared_to_recorded": compared_to_recorded(record),
        "draws": count_fates(record.ledger),
        "unreadable_lines": record.unreadable_lines,
        "rolled_back_rows": record.rolled_back_rows,
    }


def statistics_of(values: Sequence[float], metric: Metric) -> dict[str, float]:
    """Statistics of at least one value: `first` and `final` are means of the first and the last tenth, `gain`
    is their difference, `extreme` the most extreme moving average over as many values.
    """
    window = max(1, len(values) // 10)
    averages = window_means(values, window)
    extremes = values if metric.is_peak else averages.tolist()
    first, final = (fmean(some) for some in (values[:window], values[-window:]))
    return {
        "first": first,
        "final": final,
        "gain": final - first,
        "extreme": max(extremes) if metric.is_largest_watched else min(extremes),
        "mean": fmean(values),
        "last": values[-1],
    }


def compared_to_recorded(record: RunRecord) -> dict[str, Any] | None:
    """Means over training and over its last tenth, of the run and of the recorded curves of its protocol.
    Both use the parts that the run completed. None if there is nothing to compare.
    """
    recorded = find_recorded(record.config)
    if recorded is None:
        return None
    num_updates = record.num_planned or len(record.rows)
    compared: dict[str, dict[str, float]] = {}
    for name, band in recorded.curves.items():
        metric, values = metric_of(name), values_by_part(record, name, num_updates)
        pairs = [(values[at], mean) for at, mean in zip(band.steps, band.mean, strict=True) if at in values]
        if pairs and (metric not in EXPECTED or metric in HEADLINES[:3]):
            for key, some in (("mean", pairs), ("last", pairs[-max(1, len(pairs) // 10) :])):
                means = {key: fmean(value for value, _ in some), f"recorded_{key}": fmean(m for _, m in some)}
                compared[name] = compared.get(name, {}) | means
    shared = max(edge for edge in part_edges(num_updates) if edge <= len(record.rows))
    about = {"label": recorded.label, "commit": recorded.commit, "updates": shared, "of": num_updates}
    return {**about, "metrics": compared} if compared else None


def write_summary(folder: str | Path, output: str | Path | None = None) -> dict[str, Any]:
    """Writes `summary.json`, by default into the run folder, and returns the summary."""
    summary = summarise(read_run(folder))
    write_json(Path(output or folder) / "summary.json", summary)
    return summary


def count_fates(ledger: list[Row]) -> dict[str, Counter[str]]:
    """Fates of the problems in each epoch of the stream: epoch -> fate, with its reason if any -> number."""
    counts: dict[str, Counter[str]] = {}
    for row in ledger:
        fate = f"{row['fate']} ({row['reason']})" if "reason" in row else row["fate"]
        counts.setdefault(str(row["epoch"]), Counter())[fate] += 1
    return counts


def _metrics(record: RunRecord) -> dict[str, dict[str, float]]:
    names = {metric.name for metric in EXPECTED} | {TARGET_MET}
    names |= {name for name in record.columns if metric_of(name).group in PANELS or name.startswith("val/")}
    curves = {name: series(record, name)[1] for name in sorted(names)}
    return {name: statistics_of(values, metric_of(name)) for name, values in curves.items() if values}


def overlapped_parts(record: RunRecord) -> list[str]:
    """Parts of the time that cost the trainer nothing: all others, with `other`, add up to the total."""
    is_async = (record.config.get("regime") or {}).get("async_generation")
    return [part for part in TIME_PARTS if is_async and part in CONCURRENT]


def _age_bound(oldest: Sequence[float], record: RunRecord) -> dict[str, int | None]:
    """The age that `regime.max_age` allows, in updates, and the largest age that occurred."""
    allowed = (record.config.get("regime") or {}).get("max_age")
    return {"max_age": allowed, "reached": round(max(oldest)) if oldest else None}


def _seconds(values: dict[str, list[float]], record: RunRecord) -> dict[str, float | None]:
    recorded = {part: values[f"time/{part}_seconds"] for part in TIME_PARTS}
    parts = {part: math.fsum(seconds) if seconds else None for part, seconds in recorded.items()}
    overlapped = overlapped_parts(record)
    measured = math.fsum(seconds or 0.0 for part, seconds in parts.items() if part not in overlapped)
    total = finite(record.manifest.get("wall_seconds"))
    total = measured if total is None else total
    return {"total": total, **parts, "other": max(0.0, total - measured)}


def _idle_shares(values: dict[str, list[float]], is_async: bool) -> dict[str, float | None]:
    """Shares of wall time in which the trainer waited for data, and the engine for room or weights."""
    steps, engine, rollout, reward, wait = (
        math.fsum(values[f"time/{part}_seconds"])
        for part in ("step", "engine_idle", "rollout", "reward", "wait")
    )
    if not steps or not (rollout or engine):  # unknown, as in an imported log
        return {"trainer": None, "engine": None}
    if not is_async:  # one of them always waits for the other
        return {"trainer": (rollout + reward + wait) / steps, "engine": 1 - rollout / steps}
    return {"trainer": wait / steps, "engine": engine / steps}


def _tokens_per_second(rows: list[Row], rates: list[float]) -> float | None:
    """Tokens per second over all rollouts: the mean rate, weighted by seconds if these are known."""
    timed = [
        (finite(row.get("rollout/tokens_per_second")), finite(row.get("time/rollout_seconds")))
        for row in rows
    ]
    pairs = [(rate, seconds) for rate, seconds in timed if rate is not None and seconds]
    if not pairs:
        return fmean(rates) if rates else None
    return math.fsum(rate * seconds for rate, seconds in pairs) / math.fsum(seconds for _, seconds in pairs)


def _last_count(values: list[float]) -> int | None:
    return round(values[-1]) if values else None
