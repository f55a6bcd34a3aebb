"""Run folders read for a comparison; those that enter no mean have a problem that says why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from bapo_lightning.report.metrics import HELD_OUT, HIGH_RAISED, compared_among, metric_of
from bapo_lightning.report.run.curves import held_out_resolution, series
from bapo_lightning.report.run.summary import IRREGULARITIES, statistics_of, summarise
from bapo_lightning.system.errors import DataError
from bapo_lightning.system.phases import advance
from bapo_lightning.system.run_folder.find import SWEEP_RECORD
from bapo_lightning.system.run_folder.record import Columns, Curve, read_run
from bapo_lightning.tools.page.charts import COSTS, CostTables, cost_tables

NOTHING: Curve = ([], [])
NOT_BEGUN = "it has not started"  # problem of a run that a sweep has planned


@dataclass(frozen=True)
class Column:
    """A column of the table on the console."""

    key: str  # in the claims of figures
    title: str  # short lines, so that all columns fit a terminal
    metric: str
    statistic: str


# Keys of the regime that separate conditions of the same staleness.
CONDITION_KEYS = tuple(
    f"regime.{key}" for key in ("partial_tokens", "async_generation", "stream", "max_age", "reuse_share")
)
STATISTICS = {
    "final": "mean of the last tenth",
    "extreme": "best or most extreme moving average",
    "mean": "mean over the whole run",
}
COLUMNS = (
    Column("reward_last", "final\nreward", "train/reward", "final"),
    Column("reward_gain", "last -\nfirst\nreward", "train/reward", "gain"),
    # Dynamic sampling chooses the groups that training rewards come from; held-out accuracy is comparable.
    Column("accuracy_last", "held-\nout\navg@k", HELD_OUT, "last"),
    Column("entropy_last", "final\nentropy", "policy/entropy", "final"),
    Column("grad_norm_max", "max\ngrad.\nnorm", "train/grad_norm", "extreme"),
    Column("positive_share", "pos.\nshare", "bapo/positive_share", "mean"),
    Column("clip_high_raised_fraction", "bound\nraised", HIGH_RAISED, "mean"),
)


@dataclass
class Run:
    """One run folder; complete if it has no problem."""

    path: str
    problem: str | None  # why it enters no mean; None if it does
    algorithm: str = ""
    seed: int = 0  # by which differences are paired
    staleness: int = 0  # updates on each rollout batch
    condition: str = ""  # see `condition_of`
    setting: str = ""  # see `settings.name_settings`, as for the next
    setting_keys: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)  # by metric
    resolution: float = 0.0  # step of the held-out accuracy; 0 if unknown
    tokens: Columns | None = None  # single tokens, if a figure shows them and the run recorded them

    @cached_property
    def costs(self) -> CostTables:
        """Cost of the run after each update."""
        return cost_tables(self.curves)


def read(path: Path, curves: Sequence[str] | None) -> Run:
    """Reads a folder with the curves of these metrics; None: those that are compared, and costs."""
    advance()
    if not path.exists() and (path.parent / SWEEP_RECORD).exists():
        return Run(str(path), NOT_BEGUN)
    try:
        record = read_run(path)
    except DataError as error:
        return Run(str(path), str(error))
    if curves is None:
        compared = compared_among(record.columns)
        curves = (*COSTS.values(), *(metric.name for metric in compared))
    summary = summarise(record)
    return Run(
        path=str(path),
        problem=record.problem,
        algorithm=summary["algorithm"],
        seed=summary["seed"],
        staleness=summary["staleness"],
        config=record.config,
        manifest=record.manifest,
        summary=summary,
        curves={name: series(record, name) for name in curves},
        condition=condition_of(summary["staleness"], record.config),
        resolution=held_out_resolution(record),
    )


def condition_of(staleness: int | None, config: dict[str, Any]) -> str:
    """Causes of the age of a run's data: the staleness, and what its regime adds."""
    regime = config.get("regime", {})
    parts = [
        (regime.get("partial_tokens") is not None, f"{regime.get('partial_tokens')} tokens a pass"),
        (regime.get("async_generation"), "stream" if regime.get("stream") else "async"),
        (regime.get("max_age") is not None, f"age at most {regime.get('max_age')}"),
        (regime.get("reuse_share"), f"reuse {regime.get('reuse_share')}"),
    ]
    return ", ".join([f"{staleness}", *(text for holds, text in parts if holds)])


def statistic_of(run: Run, metric: str, statistic: str) -> float | None:
    """One of `statistics_of` a metric of the run; None if it was not recorded."""
    values = run.curves.get(metric, NOTHING)[1]
    return statistics_of(values, metric_of(metric))[statistic] if values else None


def damage(run: Run) -> dict[str, int]:
    """Counts of what went wrong in a run or was dropped, without zeros."""
    counts = {**run.summary["drops"], **{name: run.summary[name] for name in IRREGULARITIES}}
    counts["resumes"] = len(run.manifest.get("resumes", []))
    return {name.replace("_", " "): count for name, count in counts.items() if count}
