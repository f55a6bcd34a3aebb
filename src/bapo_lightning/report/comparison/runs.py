"""Run folders read for a comparison. Only finished runs enter a mean; every other folder stays in the list
with the reason why it is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from bapo_lightning.errors import DataError
from bapo_lightning.report.run.summary import summarise_record
from bapo_lightning.run_folder.record import Columns, RunRecord, read_run

HELD_OUT = "val/avg@k"  # mean over all validation sets
Curve = tuple[list[int], list[float]]  # updates, values


@dataclass
class Run:
    """One run folder, as much of it as a comparison needs. Without a problem, all of it is known."""

    path: str
    problem: str | None  # why it enters no mean; None when it does
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
    tokens: Columns | None = None  # single tokens, where a figure shows them and the run recorded them


def read_runs(folders: Iterable[str | Path], curves: Sequence[str]) -> list[Run]:
    """Reads all folders, each into one `Run` with the curves of the metrics `curves`."""
    return [_read(Path(folder), curves) for folder in folders]


def condition_of(staleness: int | None, config: dict[str, Any]) -> str:
    """What the age of a run's data depends on, for people: the staleness, and what its regime adds."""
    regime = config.get("regime", {})
    parts = [
        (regime.get("partial_tokens") is not None, f"{regime.get('partial_tokens')} tokens a pass"),
        (regime.get("async_generation"), "async"),
        (regime.get("max_age") is not None, f"age at most {regime.get('max_age')}"),
        (regime.get("reuse_share"), f"reuse {regime.get('reuse_share')}"),
    ]
    return ", ".join([f"{staleness}", *(text for holds, text in parts if holds)])


def _read(path: Path, curves: Sequence[str]) -> Run:
    try:
        record = read_run(path)
    except DataError as error:
        return Run(str(path), str(error))
    summary = summarise_record(record)
    return Run(
        path=str(path),
        problem=_problem(record),
        algorithm=summary["algorithm"],
        seed=summary["seed"],
        staleness=summary["staleness"],
        config=record.config,
        manifest=record.manifest,
        summary=summary,
        curves={name: _held_out(record) if name == HELD_OUT else record.series(name) for name in curves},
        condition=condition_of(summary["staleness"], record.config),
    )


def _held_out(record: RunRecord) -> Curve:
    """Mean avg@k over the validation sets, at the updates at which all of them were measured."""
    names = sorted(
        {name for row in record.rows for name in row if name.startswith("val/") and "/avg@" in name}
    )
    tables = [dict(zip(*record.series(name), strict=True)) for name in names]
    steps = sorted(set.intersection(*map(set, tables))) if tables else []
    return steps, [fmean(table[step] for table in tables) for step in steps]


def _problem(record: RunRecord) -> str | None:
    absent = [key for key in ("algorithm", "staleness", "seed") if record.manifest.get(key) is None]
    if absent:
        return f"its manifest does not say its {' and '.join(absent)}"
    status = record.manifest.get("status")
    if status != "finished":
        return f"its status is {status!r} after {len(record.rows)} updates, not 'finished'"
    return None if record.series("train/reward")[1] else "it recorded no reward"
