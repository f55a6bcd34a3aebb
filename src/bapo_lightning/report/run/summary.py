"""The numbers that a run ends with: `summary.json`, with the windows, means and sums behind them.

A quantity that was never recorded is None, never zero, so that a missing metric cannot pass for a measured
one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bapo_lightning.run_folder.record import Row, RunRecord, finite, read_run, series
from bapo_lightning.run_folder.text_file import write_json

TIME_PARTS = ("rollout", "reward", "update", "sync", "proximal", "wait")
DROP_KINDS = (
    *("dropped", "evicted", "resumed", "cut", "wasted_tokens", "unparsable", "reward_timeouts"),
    *("reward_failures", "uniform_groups", "engine_restarts"),
)
IDENTITY = ("experiment", "algorithm", "regime", "seed", "staleness", "status", "started_at")
_BOUND_TOLERANCE = 1e-6  # bounds are logged from float32


def summarise(
    rows: list[Row], manifest: dict[str, Any], config: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Summarises the rows of a run: JSON-ready, every value finite or None.

    `first` / `last` are means over the first / last tenth of the recorded updates (at least one), `best` /
    `lowest` the extreme moving average over a window of that size. Bounds count as raised above the start
    that `config` gives them. Works with zero rows and with missing metrics.
    """
    summary: dict[str, Any] = {key: manifest.get(key) for key in IDENTITY}
    summary |= {
        "problems": manifest.get("problems"),
        "updates": len(rows),
        "skipped_updates": _count(_last(rows, "train/skipped_updates")),
        "samples": _count(_last(rows, "progress/samples")),
        "tokens": _count(_last(rows, "progress/tokens")),
        "reward": _trend(_values(rows, "train/reward")),
        "entropy": _trend(_values(rows, "policy/entropy")),
        "response_length": _trend(_values(rows, "train/response_length")),
        "grad_norm_max": max(_values(rows, "train/grad_norm"), default=None),
        "positive_share": _positive_share(rows),
        "bounds": _bounds(rows, config or {}),
        "clip_fraction": {
            "total": _mean(_values(rows, "train/clip_fraction")),
            "positive": _mean(_values(rows, "train/clip_fraction_positive")),
            "negative": _mean(_values(rows, "train/clip_fraction_negative")),
        },
        "age": {
            "mean": _mean(_values(rows, "staleness/age_mean")),
            "max": max(_values(rows, "staleness/age_max"), default=None),
        },
        "seconds": _seconds(rows, manifest),
        "idle": _idle_shares(rows),
        "rollout_tokens_per_second": _tokens_per_second(rows),
        "drops": {name: _count(_total(_values(rows, f"rollout/{name}"))) for name in DROP_KINDS},
        "validation": _validation(rows),
        "non_finite_values": _non_finite(rows),
    }
    return summary


def summarise_record(record: RunRecord) -> dict[str, Any]:
    """Summary of a run as its folder holds it: `summarise`, fates of the problems, and irregular lines."""
    return {
        **summarise(record.rows, record.manifest, record.config),
        "draws": count_fates(record.ledger),
        "unreadable_lines": record.unreadable_lines,
        "rolled_back_rows": record.rolled_back_rows,
    }


def write_summary(folder: str | Path, output: str | Path | None = None) -> dict[str, Any]:
    """Writes the summary of the run in `folder` to `summary.json`, by default into the same folder; returns
    the summary.

    Raises:
        DataError: `folder` is not a run folder.
    """
    summary = summarise_record(read_run(folder))
    write_json(Path(output or folder) / "summary.json", summary)
    return summary


def count_fates(ledger: list[Row]) -> dict[str, dict[str, int]]:
    """Counts what became of the problems in each epoch of the stream: epoch -> fate, with its reason if it
    has one -> number.
    """
    counts: dict[str, dict[str, int]] = {}
    for row in ledger:
        epoch = counts.setdefault(str(row["epoch"]), {})
        fate = f"{row['fate']} ({row['reason']})" if "reason" in row else row["fate"]
        epoch[fate] = epoch.get(fate, 0) + 1
    return counts


def moving_average(values: Sequence[float], window: int) -> list[float]:
    """Means of all full windows of `window` neighbours, in order; len(values) - window + 1 of them."""
    return [math.fsum(values[start : start + window]) / window for start in range(len(values) - window + 1)]


def _trend(values: list[float]) -> dict[str, float | None]:
    if not values:
        return {"first": None, "last": None, "best": None, "lowest": None}
    averages = moving_average(values, max(1, len(values) // 10))
    return {"first": averages[0], "last": averages[-1], "best": max(averages), "lowest": min(averages)}


def _positive_share(rows: list[Row]) -> dict[str, float | None]:
    values = _values(rows, "bapo/positive_share")
    return {
        "first_half": _mean(values[: max(1, len(values) // 2)]),
        "overall": _mean(values),
        "unclipped": _mean(_values(rows, "bapo/positive_share_unclipped")),
        "target_met_fraction": _mean(_values(rows, "bapo/target_met")),
    }


def _bounds(rows: list[Row], config: dict[str, Any]) -> dict[str, float | None]:
    highs, lows = _values(rows, "bapo/clip_high"), _values(rows, "bapo/clip_low")
    return {
        "clip_low_mean": _mean(lows),
        "clip_high_mean": _mean(highs),
        "clip_low_raised_fraction": _raised(lows, _start(config, "low")),
        "clip_high_raised_fraction": _raised(highs, _start(config, "high")),
    }


def _start(config: dict[str, Any], side: str) -> float | None:
    """Value that a bound starts from in every update: the start of its search, or the fixed bound itself."""
    bound = config.get("algorithm", {}).get("bounds", {}).get(side)
    return bound.get("start") if isinstance(bound, dict) else bound


def _raised(values: list[float], start: float | None) -> float | None:
    if not values or start is None:
        return None
    return sum(value > start + _BOUND_TOLERANCE for value in values) / len(values)


def _seconds(rows: list[Row], manifest: dict[str, Any]) -> dict[str, float | None]:
    parts = {part: _total(_values(rows, f"time/{part}_seconds")) for part in TIME_PARTS}
    measured = math.fsum(seconds for seconds in parts.values() if seconds is not None)
    total = finite(manifest.get("wall_seconds"))
    total = measured if total is None else total
    # Parts that overlap (asynchronous generation) can exceed the wall time.
    return {"total": total, **parts, "other": max(0.0, total - measured)}


def _idle_shares(rows: list[Row]) -> dict[str, float | None]:
    """Shares of the updates' wall time in which the trainer waited for data, and the engine for room or
    weights. Without asynchronous generation the trainer waits while rollouts are made, the engine otherwise.
    """
    steps = _total(_values(rows, "time/step_seconds"))
    engine = _total(_values(rows, "time/engine_idle_seconds"))
    if not steps:
        return {"trainer": None, "engine": None}
    rollout, reward, wait = (
        _total(_values(rows, f"time/{part}_seconds")) or 0.0 for part in ("rollout", "reward", "wait")
    )
    if not engine:
        return {"trainer": (rollout + reward + wait) / steps, "engine": 1 - rollout / steps}
    return {"trainer": wait / steps, "engine": engine / steps}


def _tokens_per_second(rows: list[Row]) -> float | None:
    """Tokens over seconds of all rollouts: the mean rate, weighted by seconds where these are known."""
    timed = [
        (finite(row.get("rollout/tokens_per_second")), finite(row.get("time/rollout_seconds")))
        for row in rows
    ]
    pairs = [(rate, seconds) for rate, seconds in timed if rate is not None and seconds]
    if not pairs:
        return _mean(_values(rows, "rollout/tokens_per_second"))
    return math.fsum(rate * seconds for rate, seconds in pairs) / math.fsum(seconds for _, seconds in pairs)


def _validation(rows: list[Row]) -> dict[str, dict[str, float]]:
    names = sorted({name for row in rows for name in row if name.startswith("val/")})
    found = {name: _values(rows, name) for name in names}
    return {
        name: {"first": values[0], "last": values[-1], **_best(name, values)}
        for name, values in found.items()
        if values
    }


def _best(name: str, values: list[float]) -> dict[str, float]:
    # Accuracies are named <measure>@k; for other metrics, such as a length, the largest is not the best.
    return {"best": max(values)} if "@" in name else {}


def _non_finite(rows: list[Row]) -> int:
    return sum(
        isinstance(value, float) and not math.isfinite(value) for row in rows for value in row.values()
    )


def _values(rows: list[Row], name: str) -> list[float]:
    return series(rows, name)[1]


def _last(rows: list[Row], name: str) -> float | None:
    values = _values(rows, name)
    return values[-1] if values else None


def _mean(values: list[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _total(values: list[float]) -> float | None:
    return math.fsum(values) if values else None


def _count(value: float | None) -> int | None:
    return None if value is None else round(value)
