"""A comparison as files: compare.csv (statistics) and compare.json (runs, notes, curves)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bapo_lightning.report.intervals import Interval
from bapo_lightning.report.run.summary import IDENTITY
from bapo_lightning.system.run_folder.text_file import write_csv, write_json
from bapo_lightning.tools.comparison.runs import Run
from bapo_lightning.tools.comparison.table import Comparison

COLUMNS = (
    *("setting", "algorithm", "staleness", "condition", "metric", "statistic", "num_seeds", "mean"),
    *("half_width", "reference", "num_pairs", "difference", "difference_half_width", "p_value", "p_adjusted"),
)


def write_table(comparison: Comparison, path: Path) -> Path:
    """Writes one line per setting, condition, metric and statistic; returns `path`."""
    lines = []
    for (setting, condition, metric, statistic), result in comparison.results.items():
        run = comparison.cells[setting, condition][0]
        lines.append([
            *(setting, run.algorithm, run.staleness, condition, metric, statistic, *_parts(result.value)),
            *(comparison.reference, *_parts(result.difference), result.p_value, result.p_adjusted),
        ])  # fmt: skip
    return write_csv(path, COLUMNS, lines)


def write_numbers(comparison: Comparison, path: Path) -> Path:
    """Writes runs with their statistics, notes, and mean curves; returns `path`."""
    curves = []
    for (setting, condition, metric), curve in comparison.curves.items():
        band = {"lower": curve.lower, "upper": curve.upper} if curve.num_runs > 1 else {}
        named = {"setting": setting, "condition": condition, "metric": metric, "num_runs": curve.num_runs}
        curves.append({**named, "updates": curve.steps, "mean": curve.means, **band})
    content = {
        "reference": comparison.reference,
        "notes": comparison.warnings + comparison.limits,
        "runs": [_described(run, comparison) for run in comparison.runs],
        "curves": [curve for curve in curves if curve["updates"]],
    }
    return write_json(path, content)


def _parts(interval: Interval | None) -> list[object]:
    return [0, None, None] if interval is None else [interval.count, interval.mean, interval.half_width]


def _described(run: Run, comparison: Comparison) -> dict[str, Any]:
    known: dict[str, Any] = {"path": run.path, "problem": run.problem}
    if run.summary:
        known |= {key: run.summary[key] for key in (*IDENTITY, "updates")} | {"condition": run.condition}
    if run.setting:
        known |= {"setting": run.setting, "setting_keys": run.setting_keys}
    if run.problem is None:
        known["values"] = {
            f"{metric} {statistic}": result.by_seed.get(run.seed)
            for (setting, condition, metric, statistic), result in comparison.results.items()
            if (setting, condition) == (run.setting, run.condition)
        }
    return known
