"""A study: the same experiment over algorithms, their settings, staleness and seeds, as one table with
intervals.

    folders -> collect -> runs -> study_table -> rows -> print_study / write_study

Only finished runs enter a mean. Every other folder stays in the list with the reason why it was left out.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from bapo_lightning.errors import DataError
from bapo_lightning.report.intervals import Interval, mean_interval, paired_difference
from bapo_lightning.report.plot_style import algorithm_rank
from bapo_lightning.report.run.summary import summarise, write_json
from bapo_lightning.run_folder.config_keys import leaves, name_settings
from bapo_lightning.run_folder.record import RunRecord, read_run
from bapo_lightning.run_folder.text_file import write_text

Run = dict[str, Any]
# Keys of a run's configuration that say what it is or where it writes, not under which conditions it learns.
_MAY_DIFFER = {"algorithm", "seed", "run_folder", "output_root", "logger", "callbacks", "resume"}
HELD_OUT = "val/avg@k"  # of all sets together
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?")
CURVES = ("train/reward", "policy/entropy")


@dataclass(frozen=True)
class StudyMetric:
    """One column of the table: `key` in a run, `title` for people (short lines, so that all columns fit a
    terminal).
    """

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
    """All usable seeds of one setting under one condition."""

    setting: str  # the algorithm, and what sets its runs apart where they differ, see `name_settings`
    algorithm: str
    staleness: int
    condition: str  # staleness and what else the data's age depends on, see `condition_of`
    seeds: tuple[int, ...]
    values: dict[str, Interval | None]  # by metric key
    differences: dict[str, Interval | None]  # to the reference, paired by seed; empty for itself


def collect(folders: Iterable[str | Path], curves: Sequence[str] = CURVES) -> list[Run]:
    """One dict per folder: identity, the values of `METRICS`, `config`, `manifest`, `summary`, `curves`, and
    `problem`.

    `problem` is None when the run can enter a mean. `curves` names the metrics whose series are kept;
    `HELD_OUT` is the mean over all validation sets.

    Of two finished runs of one (setting, condition, seed) the later one counts, and the earlier one's problem
    names it.
    """
    runs = [_collect_run(Path(folder), curves) for folder in folders]
    name_settings([run for run in runs if run["problem"] is None])
    usable: dict[tuple[str, str, int], Run] = {}
    for run in sorted(
        (run for run in runs if run["problem"] is None), key=lambda run: (str(run["started_at"]), run["path"])
    ):
        identity = (run["setting"], run["condition"], run["seed"])
        if identity in usable:
            usable[identity]["problem"] = f"replaced by the later run {Path(run['path']).name}"
        usable[identity] = run
    return runs


def study_table(runs: Sequence[Run], reference: str | None = None) -> list[StudyRow]:
    """Means and 95 % t-intervals over seeds per (setting, condition), with differences to `reference` paired
    by seed.

    Raises:
        DataError: no run has the setting `reference`.
    """
    usable = [run for run in runs if run["problem"] is None]
    chosen = reference_setting(usable, reference)
    rows = [
        _study_row(usable, setting, condition, chosen)
        for condition in conditions(usable)
        for setting in settings(usable)
    ]
    return [row for row in rows if row.seeds]


def settings(usable: Sequence[Run]) -> list[str]:
    """All settings of the runs: from the baseline to BAPO, an algorithm's own settings by their values."""
    found = {run["setting"]: run["algorithm"] for run in usable}
    return sorted(found, key=lambda setting: (algorithm_rank(found[setting]), _natural(setting)))


def reference_setting(usable: Sequence[Run], wanted: str | None) -> str:
    """The setting that differences are taken to: `wanted`, or the first of the algorithm `wanted`; by default
    the first of all.

    Raises:
        DataError: there is no such setting.
    """
    found = settings(usable)
    algorithms = {run["setting"]: run["algorithm"] for run in usable}
    matching = [setting for setting in found if wanted in (None, setting)] or [
        setting for setting in found if algorithms[setting] == wanted
    ]
    if found and not matching:
        raise DataError(
            f"no finished run has the setting {wanted!r} that differences are to be taken to; there are: "
            f"{', '.join(found)}"
        )
    return matching[0] if matching else ""


def conditions(usable: Sequence[Run]) -> list[str]:
    """All conditions of the runs, the least stale first, of equal staleness the largest token budget
    first.
    """
    keys = {
        run["condition"]: (
            run["staleness"],
            -(run["config"].get("regime", {}).get("partial_tokens") or 10**9),
        )
        for run in usable
    }
    return sorted(keys, key=lambda condition: keys[condition])


def condition_of(staleness: int | None, config: dict[str, Any]) -> str:
    """What the age of a run's data depends on, for people: its staleness, and whatever its regime adds."""
    regime = config.get("regime", {})
    parts = [
        (regime.get("partial_tokens") is not None, f"{regime.get('partial_tokens')} tokens a pass"),
        (regime.get("async_generation"), "async"),
        (regime.get("max_age") is not None, f"age at most {regime.get('max_age')}"),
        (regime.get("reuse_share"), f"reuse {regime.get('reuse_share')}"),
    ]
    return ", ".join([f"{staleness}", *(text for holds, text in parts if holds)])


def study_notes(runs: Sequence[Run]) -> list[str]:
    """What a reader must know before comparing: runs left out, and runs whose settings are not alike where
    they should be.
    """
    notes = [f"left out: {run['path']}: {run['problem']}" for run in runs if run["problem"] is not None]
    usable = [run for run in runs if run["problem"] is None]
    for condition in conditions(usable):
        peers = [run for run in usable if run["condition"] == condition]
        differing = _differing_parts(peers, {key for run in usable for key in run["setting_keys"]})
        if differing:
            notes.append(
                f"staleness {condition}: the runs differ in more than the algorithm: {', '.join(differing)}"
            )
        if _differing(updates := [run["updates"] for run in peers]):
            notes.append(
                f"staleness {condition}: the runs have different numbers of updates: {min(updates)} to "
                f"{max(updates)}"
            )
    return notes


def write_study(runs: Sequence[Run], folder: str | Path, reference: str | None = None) -> list[Path]:
    """Write study.csv (one line per setting and condition), study.json (rows, runs, notes) and study.png;
    returns their paths.

    Raises:
        DataError: no run can enter a mean.
    """
    from bapo_lightning.report.comparison.study_plot import plot_study

    rows = study_table(runs, reference)
    notes = study_notes(runs)
    chosen = reference_setting([run for run in runs if run["problem"] is None], reference)
    if not rows:
        raise DataError("no finished run to compare:\n  " + "\n  ".join(notes or ["no folder was given"]))
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    listed = [
        {key: value for key, value in run.items() if key not in ("curves", "config", "manifest", "summary")}
        for run in runs
    ]
    write_json(
        target / "study.json",
        {"reference": chosen, "rows": [asdict(row) for row in rows], "runs": listed, "notes": notes},
    )
    _write_csv(target / "study.csv", rows)
    return [target / "study.csv", target / "study.json", plot_study(runs, target / "study.png")]


def _collect_run(path: Path, curves: Sequence[str]) -> Run:
    try:
        record = read_run(path)
    except DataError as error:
        return {"path": str(path), "problem": str(error)}
    summary = summarise(record.rows, record.manifest, record.config)
    summary |= {"unreadable_lines": record.unreadable_lines, "rolled_back_rows": record.rolled_back_rows}
    reward, share = summary["reward"], summary["positive_share"]
    return {
        "path": str(path),
        "problem": _problem(record),
        **{
            key: summary[key]
            for key in (
                "experiment",
                "algorithm",
                "regime",
                "seed",
                "staleness",
                "status",
                "started_at",
                "updates",
            )
        },
        "condition": condition_of(summary["staleness"], record.config),
        "config": record.config,
        "manifest": record.manifest,
        "summary": summary,
        "reward_last": reward["last"],
        "reward_gain": None if reward["first"] is None else reward["last"] - reward["first"],
        "accuracy_last": _held_out_accuracy(summary["validation"]),
        "entropy_last": summary["entropy"]["last"],
        "grad_norm_max": summary["grad_norm_max"],
        "positive_share": share["overall"],
        "clip_high_raised_fraction": summary["bounds"]["clip_high_raised_fraction"],
        "curves": {name: _held_out(record) if name == HELD_OUT else record.series(name) for name in curves},
    }


def _held_out(record: RunRecord) -> tuple[list[int], list[float]]:
    """Mean avg@k over the validation sets, at the updates at which all of them were measured."""
    names = sorted(
        {name for row in record.rows for name in row if name.startswith("val/") and "/avg@" in name}
    )
    tables = [dict(zip(*record.series(name), strict=True)) for name in names]
    steps = sorted(set.intersection(*map(set, tables))) if tables else []
    return steps, [fmean(table[step] for table in tables) for step in steps]


def _held_out_accuracy(validation: dict[str, dict[str, float]]) -> float | None:
    """Mean over the sets: training rewards alone do not compare, since dynamic sampling chooses which groups
    they are taken from.
    """
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


def _study_row(usable: Sequence[Run], setting: str, condition: str, reference: str) -> StudyRow:
    cell = cell_of(usable, setting, condition)
    against = cell_of(usable, reference, condition) if setting != reference else []
    keys = [metric.key for metric in METRICS]
    return StudyRow(
        setting=setting,
        algorithm=next((run["algorithm"] for run in cell), ""),
        staleness=next((run["staleness"] for run in cell), 0),
        condition=condition,
        seeds=tuple(sorted(run["seed"] for run in cell)),
        values={key: mean_interval(list(_by_seed(cell, key).values())) for key in keys},
        differences={key: paired_difference(_by_seed(cell, key), _by_seed(against, key)) for key in keys}
        if against
        else {},
    )


def cell_of(usable: Sequence[Run], setting: str, condition: str) -> list[Run]:
    """The usable runs of one setting under one condition."""
    return [run for run in usable if (run["setting"], run["condition"]) == (setting, condition)]


def _natural(text: str) -> list[tuple[float, str]]:
    """Sort key by which x=4 comes before x=16: numbers by value, the rest by letter."""
    return [
        (float(part), "") if _NUMBER.fullmatch(part) else (math.inf, part) for part in re.split(r"[ =]", text)
    ]


def _differing_parts(peers: Sequence[Run], named: set[str]) -> list[str]:
    """Parts of the configuration in which runs differ, but for what their settings name."""
    tables = [dict(leaves(run["config"])) for run in peers]
    keys = {
        key
        for table in tables
        for key in table
        if key not in named and key.partition(".")[0] not in _MAY_DIFFER
    }
    columns = {key: [table.get(key) for table in tables] for key in keys}
    seeds = [run["seed"] for run in peers]
    return sorted(
        {key.partition(".")[0] for key, values in columns.items() if _differing(values) and values != seeds}
    )


def _differing(values: Sequence[object]) -> bool:
    return len({json.dumps(value, sort_keys=True, default=str) for value in values}) > 1


def _by_seed(cell: Sequence[Run], key: str) -> dict[int, float]:
    return {run["seed"]: run[key] for run in cell if run[key] is not None}


def _write_csv(path: Path, rows: Sequence[StudyRow]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    kinds = ("mean", "half_width", "difference", "difference_half_width")
    writer.writerow(
        [
            "setting",
            "algorithm",
            "staleness",
            "condition",
            "num_seeds",
            *(f"{metric.key}_{kind}" for metric in METRICS for kind in kinds),
        ]
    )
    for row in rows:
        cells: list[object] = [row.setting, row.algorithm, row.staleness, row.condition, len(row.seeds)]
        for metric in METRICS:
            for interval in (row.values[metric.key], row.differences.get(metric.key)):
                cells += [None, None] if interval is None else [interval.mean, interval.half_width]
        writer.writerow(cells)
    write_text(path, text.getvalue())
