"""An evaluation on the console: progress and results."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from bapo_lightning.evaluation.results import LENGTH
from bapo_lightning.types import Sample, ScoreStatus

LINES = 10  # of progress, where there is no terminal


class EvaluationProgress:
    """A bar on a terminal, else a line now and then."""

    def __init__(self, num_samples: int, num_done: int) -> None:
        """`num_samples` in all, `num_done` before this session."""
        self._total, self._done, self._before = num_samples, num_done, num_done
        self._tokens = self._correct = 0
        self._start = time.monotonic()
        self._bar = Progress(
            TextColumn("samples"),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
        )
        self._task = self._bar.add_task("", total=num_samples, completed=num_done)
        self._is_terminal = sys.stdout.isatty()

    def __enter__(self) -> EvaluationProgress:
        if self._is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_terminal:
            self._bar.stop()

    def add(self, samples: Sequence[Sample]) -> None:
        """Count and show samples that are written down."""
        lines_before = self._done * LINES // self._total
        self._done += len(samples)
        self._tokens += sum(sample.rollout.length for sample in samples)
        self._correct += sum(sample.score.status is ScoreStatus.CORRECT for sample in samples)
        rate = self._tokens / max(time.monotonic() - self._start, 1e-9)
        text = f"{rate:,.0f} tokens/s, {100 * self._correct / (self._done - self._before):.1f} % right"
        if self._is_terminal:
            self._bar.update(self._task, completed=self._done, description=text)
        elif self._done * LINES // self._total > lines_before:
            print(f"{self._done} of {self._total} samples, {text}", flush=True)


def print_results(results: Mapping[str, Any], console: Console | None = None) -> None:
    """Prints a row for each metric and a column for each set, every value with its interval over problems."""
    console = console or Console()
    table = simple_table()
    table.add_column(f"temperature {results['temperature']:g}", no_wrap=True)
    for name, found in results["sets"].items():
        table.add_column(f"{name}\n{found['num_problems']} problems x {results['k']}", justify="right")
    metrics = [found["metrics"] for found in results["sets"].values()]
    for metric in dict.fromkeys(name for found in metrics for name in found):
        cells = (Text(estimate_text(metric, found.get(metric))) for found in metrics)
        table.add_row(metric_title(metric), *cells)
    console.print()
    rest = Text(": mean [95 % interval over problems]", style="not bold")
    console.print(Text(results["name"], style="bold") + rest, soft_wrap=True)
    console.print(table)
    for name, found in results["sets"].items():
        verdicts = ", ".join(f"{count:,} {verdict}" for verdict, count in found["verdicts"].items())
        console.print(f"  {name}: {verdicts}", highlight=False, markup=False, soft_wrap=True)


def simple_table() -> Table:
    """A table that stays readable when it is piped."""
    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))


def metric_title(metric: str) -> str:
    """Name of a metric with the unit that it is shown in."""
    if metric == LENGTH:
        return "response length, tokens"
    return f"{metric.removesuffix('_fraction').replace('_', ' ')}, %"


def estimate_text(metric: str, estimate: Mapping[str, float] | None, is_difference: bool = False) -> str:
    """Value and interval, shares in percent, - if undefined; * for a difference whose interval excludes 0."""
    if estimate is None:
        return "-"
    factor, decimals = (1.0, 0) if metric == LENGTH else (100.0, 1)
    value, low, high = (factor * estimate[key] for key in ("value", "low", "high"))
    sign, mark = ("+", "*" if low > 0 or high < 0 else "") if is_difference else ("", "")
    return f"{value:{sign}.{decimals}f}{mark} [{low:{sign}.{decimals}f}, {high:{sign}.{decimals}f}]"
