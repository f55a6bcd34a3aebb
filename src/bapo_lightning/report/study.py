"""A study: the same experiment over algorithms, staleness and seeds, as one table with intervals.

    folders -> collect -> runs -> study_table -> rows -> print_study / write_study

Only finished runs enter a mean. Every other folder stays in the list with the reason why it was left out.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from bapo_lightning.errors import DataError
from bapo_lightning.report.intervals import Interval, mean_interval, paired_difference
from bapo_lightning.report.plot_style import algorithm_rank
from bapo_lightning.report.run_folder import RunRecord, read_run
from bapo_lightning.report.summary import summarise, write_json

Run = dict[str, Any]
# Keys of a run's configuration that say what it is or where it writes, not under which conditions it learns.
_MAY_DIFFER = {"algorithm", "seed", "run_folder", "output_root", "logger", "callbacks", "resume"}
CURVES = ("train/reward", "policy/entropy")


@dataclass(frozen=True)
class StudyMetric:
    """One column of the table: `key` in a run, `title` for people (short lines, so that all columns fit a terminal)."""

    key: str
    title: str


METRICS = (
    StudyMetric("reward_last", "final\nreward"),
    StudyMetric("reward_gain", "last -\nfirst\nreward"),
    StudyMetric("accuracy_last", "held-\nout\navg@k"),
    StudyMetric("entropy_last", "final\nentropy"),
    StudyMetric("grad_norm_max", "max\ngrad.\nnorm"),
    StudyMetric("positive_share", "pos.\nshare"),
    StudyMetric("clip_high_raised_fraction", "bound\nraised"),
)


@dataclass(frozen=True)
class StudyRow:
    """All usable seeds of one algorithm under one condition."""

    algorithm: str
    staleness: int
    condition: str  # staleness and what else the data's age depends on, see `condition_of`
    seeds: tuple[int, ...]
    values: dict[str, Interval | None]  # by metric key
    differences: dict[str, Interval | None]  # to the reference, paired by seed; empty for itself


def collect(folders: Iterable[str | Path]) -> list[Run]:
    """One dict per folder: identity, the values of `METRICS`, `config`, `curves`, and `problem` (None when the run can enter a mean).

    Of two finished runs of one (algorithm, condition, seed) the later one counts, and the earlier one's problem names it.
    """
    runs = [_collect_run(Path(folder)) for folder in folders]
    usable: dict[tuple[str, str, int], Run] = {}
    for run in sorted((run for run in runs if run["problem"] is None), key=lambda run: (str(run["started_at"]), run["path"])):
        identity = (run["algorithm"], run["condition"], run["seed"])
        if identity in usable:
            usable[identity]["problem"] = f"replaced by the later run {Path(run['path']).name}"
        usable[identity] = run
    return runs


def study_table(runs: Sequence[Run], reference: str = "grpo") -> list[StudyRow]:
    """Means and 95 % t-intervals over seeds per (algorithm, condition), with differences to `reference` paired by seed."""
    usable = [run for run in runs if run["problem"] is None]
    algorithms = sorted({run["algorithm"] for run in usable}, key=algorithm_rank)
    rows = [_study_row(usable, algorithm, condition, reference) for condition in conditions(usable) for algorithm in algorithms]
    return [row for row in rows if row.seeds]


def conditions(usable: Sequence[Run]) -> list[str]:
    """All conditions of the runs, the least stale first, of equal staleness the largest token budget first."""
    keys = {run["condition"]: (run["staleness"], -(run["config"].get("regime", {}).get("tokens_per_pass") or 10**9)) for run in usable}
    return sorted(keys, key=lambda condition: keys[condition])


def condition_of(staleness: int | None, config: dict[str, Any]) -> str:
    """What the age of a run's data depends on, for people: its staleness, and the token budget of a pass where rollouts are partial."""
    budget = config.get("regime", {}).get("tokens_per_pass")
    return f"{staleness}" if budget is None else f"{staleness}, {budget} tokens a pass"


def study_notes(runs: Sequence[Run]) -> list[str]:
    """What a reader must know before comparing: runs left out, and runs whose settings are not alike where they should be."""
    notes = [f"left out: {run['path']}: {run['problem']}" for run in runs if run["problem"] is not None]
    usable = [run for run in runs if run["problem"] is None]
    for algorithm, condition in sorted({(run["algorithm"], run["condition"]) for run in usable}):
        if _differing([run["config"].get("algorithm") for run in cell_of(usable, algorithm, condition)]):
            notes.append(f"{algorithm} at staleness {condition}: its runs differ in their algorithm settings")
    for condition in conditions(usable):
        peers = [run for run in usable if run["condition"] == condition]
        keys = {key for run in peers for key in run["config"]} - _MAY_DIFFER
        differing = sorted(key for key in keys if _differing([run["config"].get(key) for run in peers]))
        if differing:
            notes.append(f"staleness {condition}: the runs differ in more than the algorithm: {', '.join(differing)}")
        if _differing(updates := [run["updates"] for run in peers]):
            notes.append(f"staleness {condition}: the runs have different numbers of updates: {min(updates)} to {max(updates)}")
    return notes


def write_study(runs: Sequence[Run], folder: str | Path, reference: str = "grpo") -> list[Path]:
    """Write study.csv (one line per algorithm and condition), study.json (rows, runs, notes) and study.png; returns their paths.

    Raises:
        DataError: no run can enter a mean.
    """
    from bapo_lightning.report.study_plot import plot_study

    rows = study_table(runs, reference)
    notes = study_notes(runs)
    if not rows:
        raise DataError("no finished run to compare:\n  " + "\n  ".join(notes or ["no folder was given"]))
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    listed = [{key: value for key, value in run.items() if key not in ("curves", "config")} for run in runs]
    write_json(target / "study.json", {"reference": reference, "rows": [asdict(row) for row in rows], "runs": listed, "notes": notes})
    _write_csv(target / "study.csv", rows)
    return [target / "study.csv", target / "study.json", plot_study(runs, target / "study.png")]


def _collect_run(path: Path) -> Run:
    try:
        record = read_run(path)
    except DataError as error:
        return {"path": str(path), "problem": str(error)}
    summary = summarise(record.rows, record.manifest, record.config)
    reward, share = summary["reward"], summary["positive_share"]
    return {
        "path": str(path),
        "problem": _problem(record),
        **{key: summary[key] for key in ("experiment", "algorithm", "regime", "seed", "staleness", "status", "started_at", "updates")},
        "condition": condition_of(summary["staleness"], record.config),
        "config": record.config,
        "reward_last": reward["last"],
        "reward_gain": None if reward["first"] is None else reward["last"] - reward["first"],
        "accuracy_last": _held_out_accuracy(summary["validation"]),
        "entropy_last": summary["entropy"]["last"],
        "grad_norm_max": summary["grad_norm_max"],
        "positive_share": share["overall"],
        "clip_high_raised_fraction": summary["bounds"]["clip_high_raised_fraction"],
        "curves": {name: record.series(name) for name in CURVES},
    }


def _held_out_accuracy(validation: dict[str, dict[str, float]]) -> float | None:
    """Mean over the sets: training rewards alone do not compare, since dynamic sampling chooses which groups they are taken from."""
    values = [numbers["last"] for name, numbers in validation.items() if "/avg@" in name]
    return fmean(values) if values else None


def _problem(record: RunRecord) -> str | None:
    absent = [key for key in ("algorithm", "staleness", "seed") if record.manifest.get(key) is None]
    if absent:
        return f"its manifest does not say its {' and '.join(absent)}"
    status = record.manifest.get("status")
    if status != "finished":
        return f"its status is {status!r} after {len(record.rows)} updates, not 'finished'"
    return None if record.series("train/reward")[1] else "it recorded no reward"


def _study_row(usable: Sequence[Run], algorithm: str, condition: str, reference: str) -> StudyRow:
    cell = cell_of(usable, algorithm, condition)
    against = cell_of(usable, reference, condition) if algorithm != reference else []
    keys = [metric.key for metric in METRICS]
    return StudyRow(
        algorithm=algorithm,
        staleness=next((run["staleness"] for run in cell), 0),
        condition=condition,
        seeds=tuple(sorted(run["seed"] for run in cell)),
        values={key: mean_interval(list(_by_seed(cell, key).values())) for key in keys},
        differences={key: paired_difference(_by_seed(cell, key), _by_seed(against, key)) for key in keys} if against else {},
    )


def cell_of(usable: Sequence[Run], algorithm: str, condition: str) -> list[Run]:
    """The usable runs of one algorithm under one condition."""
    return [run for run in usable if (run["algorithm"], run["condition"]) == (algorithm, condition)]


def _differing(values: Sequence[object]) -> bool:
    return len({json.dumps(value, sort_keys=True, default=str) for value in values}) > 1


def _by_seed(cell: Sequence[Run], key: str) -> dict[int, float]:
    return {run["seed"]: run[key] for run in cell if run[key] is not None}


def _write_csv(path: Path, rows: Sequence[StudyRow]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    kinds = ("mean", "half_width", "difference", "difference_half_width")
    writer.writerow(["algorithm", "staleness", "condition", "num_seeds", *(f"{metric.key}_{kind}" for metric in METRICS for kind in kinds)])
    for row in rows:
        cells: list[object] = [row.algorithm, row.staleness, row.condition, len(row.seeds)]
        for metric in METRICS:
            for interval in (row.values[metric.key], row.differences.get(metric.key)):
                cells += [None, None] if interval is None else [interval.mean, interval.half_width]
        writer.writerow(cells)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text.getvalue(), encoding="utf-8")
    os.replace(partial, path)
