"""The numbers that a run ends with: `summary.json`, with the windows, means and sums behind them.

A quantity that was never recorded is None, never zero, so that a missing metric cannot pass for a measured
one.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from bapo_lightning.report.metrics import in_group
from bapo_lightning.report.run.curves import bound_start, is_raised
from bapo_lightning.report.run.recorded import find_recorded
from bapo_lightning.run_folder.record import Row, RunRecord, finite, read_run
from bapo_lightning.run_folder.text_file import write_json

TIME_PARTS = tuple(metric.name[len("time/") : -len("_seconds")] for metric in in_group("time"))
DROP_KINDS = tuple(metric.name.removeprefix("rollout/") for metric in in_group("drops"))
IDENTITY = ("experiment", "algorithm", "regime", "seed", "staleness", "status", "started_at")
COMPARED = ("train/reward", "policy/entropy")  # to recorded curves, as held-out accuracy is
_Values = dict[str, list[float]]  # metric -> its finite values, update after update


def summarise(
    rows: list[Row], manifest: dict[str, Any], config: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Summarises the rows of a run: JSON-ready, every value finite or None.

    `first` / `last` are means over the first / last tenth of the recorded updates (at least one), `best` /
    `lowest` the extreme moving average over a window of that size. Bounds count as raised above the start
    that `config` gives them. Works with zero rows and with missing metrics.
    """
    values: _Values = defaultdict(list)
    for row in rows:
        for name, value in row.items():
            if (number := finite(value)) is not None:
                values[name].append(number)
    return {
        **{key: manifest.get(key) for key in (*IDENTITY, "problems")},
        "updates": len(rows),
        "skipped_updates": _last_count(values["train/skipped_updates"]),
        "samples": _last_count(values["progress/samples"]),
        "tokens": _last_count(values["progress/tokens"]),
        "reward": _trend(values["train/reward"]),
        "entropy": _trend(values["policy/entropy"]),
        "response_length": _trend(values["train/response_length"]),
        "grad_norm_max": max(values["train/grad_norm"], default=None),
        "updates_without_gradient": sum(norm == 0 for norm in values["train/grad_norm"]),
        "positive_share": _positive_share(values),
        "bounds": _bounds(values, config or {}),
        "clip_fraction": {
            "total": _mean(values["train/clip_fraction"]),
            "positive": _mean(values["train/clip_fraction_positive"]),
            "negative": _mean(values["train/clip_fraction_negative"]),
        },
        "age": {
            "mean": _mean(values["staleness/age_mean"]),
            "max": max(values["staleness/age_max"], default=None),
        },
        "seconds": _seconds(values, manifest),
        "idle": _idle_shares(values),
        "rollout_tokens_per_second": _tokens_per_second(rows, values),
        "drops": {name: _total_count(values[f"rollout/{name}"]) for name in DROP_KINDS},
        "validation": _validation(values),
        "non_finite_values": sum(
            isinstance(value, float) and not math.isfinite(value) for row in rows for value in row.values()
        ),
    }


def summarise_record(record: RunRecord) -> dict[str, Any]:
    """Summary of a run as its folder holds it: `summarise`, fates of the problems, and irregular lines."""
    return {
        **summarise(record.rows, record.manifest, record.config),
        "compared_to_recorded": compared_to_recorded(record),
        "draws": count_fates(record.ledger),
        "unreadable_lines": record.unreadable_lines,
        "rolled_back_rows": record.rolled_back_rows,
    }


def compared_to_recorded(record: RunRecord) -> dict[str, Any] | None:
    """Means of the run and of the recorded curves of its protocol, over training and at its end; None where
    no curves were recorded.
    """
    recorded = find_recorded(record.config)
    if recorded is None:
        return None
    compared: dict[str, dict[str, float | None]] = {}
    for name, band in recorded.curves.items():
        values = record.series(name)[1]
        if values and (name.startswith("val/") or name in COMPARED):
            compared[name] = {"mean": fmean(values), "recorded_mean": fmean(band.mean)}
            compared[name] |= {"last": _trend(values)["last"], "recorded_last": band.mean[-1]}
    return {"label": recorded.label, "commit": recorded.commit, "metrics": compared}


def write_summary(folder: str | Path, output: str | Path | None = None) -> dict[str, Any]:
    """Writes the summary of the run in `folder` to `summary.json`, by default into the same folder; returns
    the summary.

    Raises:
        DataError: `folder` is not a run folder.
    """
    summary = summarise_record(read_run(folder))
    write_json(Path(output or folder) / "summary.json", summary)
    return summary


def count_fates(ledger: list[Row]) -> dict[str, Counter[str]]:
    """Counts what became of the problems in each epoch of the stream: epoch -> fate, with its reason if it
    has one -> number.
    """
    counts: dict[str, Counter[str]] = {}
    for row in ledger:
        fate = f"{row['fate']} ({row['reason']})" if "reason" in row else row["fate"]
        counts.setdefault(str(row["epoch"]), Counter())[fate] += 1
    return counts


def moving_average(values: Sequence[float], window: int) -> list[float]:
    """Means of all full windows of `window` neighbours, in order; len(values) - window + 1 of them."""
    return [math.fsum(values[start : start + window]) / window for start in range(len(values) - window + 1)]


def _trend(values: list[float]) -> dict[str, float | None]:
    if not values:
        return {"first": None, "last": None, "best": None, "lowest": None}
    averages = moving_average(values, max(1, len(values) // 10))
    return {"first": averages[0], "last": averages[-1], "best": max(averages), "lowest": min(averages)}


def _positive_share(values: _Values) -> dict[str, float | None]:
    shares = values["bapo/positive_share"]
    return {
        "first_half": _mean(shares[: max(1, len(shares) // 2)]),
        "overall": _mean(shares),
        "unclipped": _mean(values["bapo/positive_share_unclipped"]),
        "target_met_fraction": _mean(values["bapo/target_met"]),
    }


def _bounds(values: _Values, config: dict[str, Any]) -> dict[str, float | None]:
    highs, lows = values["bapo/clip_high"], values["bapo/clip_low"]
    return {
        "clip_low_mean": _mean(lows),
        "clip_high_mean": _mean(highs),
        "clip_low_raised_fraction": _raised(lows, bound_start(config, "low")),
        "clip_high_raised_fraction": _raised(highs, bound_start(config, "high")),
    }


def _raised(values: list[float], start: float | None) -> float | None:
    return None if start is None else _mean([is_raised(value, start) for value in values])


def _seconds(values: _Values, manifest: dict[str, Any]) -> dict[str, float | None]:
    parts = {part: _total(values[f"time/{part}_seconds"]) for part in TIME_PARTS}
    measured = math.fsum(seconds for seconds in parts.values() if seconds is not None)
    total = finite(manifest.get("wall_seconds"))
    total = measured if total is None else total
    # Parts that overlap (asynchronous generation) can exceed the wall time.
    return {"total": total, **parts, "other": max(0.0, total - measured)}


def _idle_shares(values: _Values) -> dict[str, float | None]:
    """Shares of the updates' wall time in which the trainer waited for data, and the engine for room or
    weights. Without asynchronous generation the trainer waits while rollouts are made, the engine otherwise.
    """
    steps, engine, rollout, reward, wait = (
        math.fsum(values[f"time/{part}_seconds"])
        for part in ("step", "engine_idle", "rollout", "reward", "wait")
    )
    if not steps:
        return {"trainer": None, "engine": None}
    if not engine:
        return {"trainer": (rollout + reward + wait) / steps, "engine": 1 - rollout / steps}
    return {"trainer": wait / steps, "engine": engine / steps}


def _tokens_per_second(rows: list[Row], values: _Values) -> float | None:
    """Tokens over seconds of all rollouts: the mean rate, weighted by seconds where these are known."""
    timed = [
        (finite(row.get("rollout/tokens_per_second")), finite(row.get("time/rollout_seconds")))
        for row in rows
    ]
    pairs = [(rate, seconds) for rate, seconds in timed if rate is not None and seconds]
    if not pairs:
        return _mean(values["rollout/tokens_per_second"])
    return math.fsum(rate * seconds for rate, seconds in pairs) / math.fsum(seconds for _, seconds in pairs)


def _validation(values: _Values) -> dict[str, dict[str, float]]:
    found = {name: values[name] for name in sorted(values) if name.startswith("val/")}
    # Accuracies are named <measure>@k; for other metrics, such as a length, the largest is not the best.
    return {
        name: {"first": series[0], "last": series[-1]} | ({"best": max(series)} if "@" in name else {})
        for name, series in found.items()
    }


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _total(values: list[float]) -> float | None:
    return math.fsum(values) if values else None


def _total_count(values: list[float]) -> int | None:
    return round(math.fsum(values)) if values else None


def _last_count(values: list[float]) -> int | None:
    return round(values[-1]) if values else None
