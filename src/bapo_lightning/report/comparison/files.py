"""The tables of a comparison as CSV: results.csv with every statistic, curves.csv with what the panels
draw.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from bapo_lightning.report.comparison.table import Comparison
from bapo_lightning.report.intervals import Interval
from bapo_lightning.run_folder.text_file import write_text

RESULT_COLUMNS = (
    *("setting", "condition", "metric", "statistic", "num_seeds", "mean", "half_width"),
    *("reference", "num_pairs", "difference", "difference_half_width", "p_value", "p_adjusted"),
)
CURVE_COLUMNS = ("setting", "condition", "metric", "update", "mean", "half_width", "num_runs")


def write_results(comparison: Comparison, path: Path) -> Path:
    """One line per setting, condition, metric and statistic; returns `path`."""
    lines = []
    for result in comparison.results.values():
        value, difference = _cells(result.value), _cells(result.difference)
        identity = [result.setting, result.condition, result.metric, result.statistic]
        lines.append(
            [*identity, *value, comparison.reference, *difference, result.p_value, result.p_adjusted]
        )
    return write_text(path, _csv(RESULT_COLUMNS, lines))


def write_curves(comparison: Comparison, path: Path) -> Path:
    """One line per setting, condition, metric and update; half-widths are of 95 %, empty with one run.
    Returns `path`.
    """
    lines = [
        [*key, step, mean, width if curve.num_runs > 1 else None, curve.num_runs]
        for key, curve in comparison.curves.items()
        for step, mean, width in zip(curve.steps, curve.means, curve.half_widths, strict=True)
    ]
    return write_text(path, _csv(CURVE_COLUMNS, lines))


def _cells(interval: Interval | None) -> list[object]:
    return [0, None, None] if interval is None else [interval.count, interval.mean, interval.half_width]


def _csv(header: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(lines)
    return text.getvalue()
