"""The tables of a comparison as files: study.csv and study.json (the short table), results.csv (every
statistic), curves.csv (what the panels draw).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bapo_lightning.report.comparison.runs import COLUMNS, STATISTICS, Run, statistic_of
from bapo_lightning.report.comparison.table import Comparison
from bapo_lightning.report.intervals import Interval
from bapo_lightning.report.run.summary import IDENTITY
from bapo_lightning.run_folder.text_file import write_csv, write_json

_STUDY_PARTS = ("mean", "half_width", "difference", "difference_half_width")
STUDY_COLUMNS = (
    *("setting", "algorithm", "staleness", "condition", "num_seeds"),
    *(f"{column.key}_{part}" for column in COLUMNS for part in _STUDY_PARTS),
)
RESULT_COLUMNS = (
    *("setting", "condition", "metric", "statistic", "num_seeds", "mean", "half_width"),
    *("reference", "num_pairs", "difference", "difference_half_width", "p_value", "p_adjusted"),
)
CURVE_COLUMNS = ("setting", "condition", "metric", "update", "mean", "lower", "upper", "num_runs")


def write_study(comparison: Comparison, folder: Path) -> list[Path]:
    """Writes study.csv (one line per setting and condition) and study.json (the same, runs, notes); returns
    their paths.
    """
    lines, rows = [], []
    for (setting, condition), runs in comparison.cells.items():
        algorithm, staleness = runs[0].algorithm, runs[0].staleness
        results = {column.key: comparison.result((setting, condition), column) for column in COLUMNS}
        values = {key: result.value for key, result in results.items()}
        differences = {key: result.difference for key, result in results.items()}
        numbers = [
            number for key in results for row in (values, differences) for number in _cells(row[key])[1:]
        ]
        lines.append([setting, algorithm, staleness, condition, len(runs), *numbers])
        rows.append(
            {
                "setting": setting,
                "algorithm": algorithm,
                "staleness": staleness,
                "condition": condition,
                "seeds": sorted(run.seed for run in runs),
                "values": values,
                "differences": differences if comparison.is_compared((setting, condition)) else {},
            }
        )
    content = {
        "reference": comparison.reference,
        "rows": rows,
        "runs": [_identity(run) for run in comparison.runs],
        "notes": comparison.warnings,
    }
    return [
        write_csv(folder / "study.csv", STUDY_COLUMNS, lines),
        write_json(folder / "study.json", content),
    ]


def write_results(comparison: Comparison, path: Path) -> Path:
    """Writes one line per setting, condition, metric and statistic; returns `path`."""
    lines = []
    for key, result in comparison.results.items():
        if key[-1] in STATISTICS:
            compared = [comparison.reference, *_cells(result.difference), result.p_value, result.p_adjusted]
            lines.append([*key, *_cells(result.value), *compared])
    return write_csv(path, RESULT_COLUMNS, lines)


def write_curves(comparison: Comparison, path: Path) -> Path:
    """Writes one line per setting, condition, metric and update; returns `path`. The interval is of 95 %,
    empty with one run.
    """
    lines = [
        [*key, step, mean, *(ends if curve.num_runs > 1 else (None, None)), curve.num_runs]
        for key, curve in comparison.curves.items()
        for step, mean, *ends in zip(curve.steps, curve.means, curve.lower, curve.upper, strict=True)
    ]
    return write_csv(path, CURVE_COLUMNS, lines)


def _cells(interval: Interval | None) -> list[object]:
    return [0, None, None] if interval is None else [interval.count, interval.mean, interval.half_width]


def _identity(run: Run) -> dict[str, Any]:
    """A run for study.json; one that could not be read has its path and problem only."""
    known: dict[str, Any] = {"path": run.path, "problem": run.problem}
    if run.summary:
        known |= {key: run.summary[key] for key in (*IDENTITY, "updates")} | {"condition": run.condition}
        known |= {column.key: statistic_of(run, column.metric, column.statistic) for column in COLUMNS}
    if run.setting:
        known |= {"setting": run.setting, "setting_keys": run.setting_keys}
    return known
