"""An evaluation on the console: progress and results."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from bapo_lightning.report.progress.display import Pace, Place, bar_line, on_terminal, shown
from bapo_lightning.report.progress.terminal import Terminal, in_parts, simple_table
from bapo_lightning.tools.evaluation.results import LENGTH
from bapo_lightning.types import Sample, ScoreStatus

LINES = 10  # of progress, without a terminal


class EvaluationProgress:
    """Number of recorded samples, the rate, and the share that is right."""

    def __init__(self, num_samples: int, num_done: int) -> None:
        """`num_samples` in all, `num_done` before this session."""
        self._total, self._done, self._before = num_samples, num_done, num_done
        self._tokens = self._correct = 0
        self._start = time.monotonic()
        self._pace = Pace(num_done, 1, self._start)

    def add(self, samples: Sequence[Sample]) -> None:
        """Counts recorded samples; without a terminal, prints the progress now and then."""
        lines_before = self._done * LINES // self._total
        self._done += len(samples)
        self._tokens += sum(sample.rollout.length for sample in samples)
        self._correct += sum(sample.score.status is ScoreStatus.CORRECT for sample in samples)
        self._pace.note(self._done, time.monotonic())
        if not on_terminal() and self._done * LINES // self._total > lines_before:
            print(f"{self._done} of {self._total} samples, {self._text()}", flush=True)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """A bar, and a line of numbers once there are any."""
        now = time.monotonic()
        label = f"samples {self._done}/{self._total}"
        yield bar_line(label, self._done, self._total, now - self._start, self._pace.left(self._total, now))
        if self._done > self._before:
            yield Text(self._text(), no_wrap=True, overflow="ellipsis")

    def _text(self) -> str:
        rate = self._tokens / max(time.monotonic() - self._start, 1e-9)
        return f"{rate:,.0f} tokens/s, {100 * self._correct / (self._done - self._before):.1f} % right"


@contextmanager
def followed(num_samples: int, num_done: int) -> Iterator[EvaluationProgress]:
    """Context that shows the progress of an evaluation; yields the object that counts its samples."""
    progress = EvaluationProgress(num_samples, num_done)
    with shown(Place.RUN, progress):
        yield progress


def print_results(results: Mapping[str, Any], console: Console | None = None) -> None:
    """Prints a row for each metric and a column for each set, every value with its interval over problems."""
    console = console or Terminal()
    names = list(results["sets"])
    metrics = dict.fromkeys(metric for result in results["sets"].values() for metric in result["metrics"])

    def table_of(columns: Sequence[int]) -> Table:
        sets = {names[number]: results["sets"][names[number]] for number in columns}
        table = simple_table(2)
        table.add_column(f"temperature {results['temperature']:g}", no_wrap=True)
        for name, result in sets.items():
            title = f"{name}\n{result['num_problems']} problems x {results['k']}"
            table.add_column(title, justify="right", no_wrap=True)
        for metric in metrics:
            cells = (Text(estimate_text(metric, result["metrics"].get(metric))) for result in sets.values())
            table.add_row(metric_title(metric), *cells)
        return table

    console.print()
    rest = Text(": mean [95 % interval over problems]", style="not bold")
    console.print(Text(results["name"], style="bold") + rest, soft_wrap=not console.is_terminal)
    for table in in_parts(table_of, len(names), console):
        console.print(table)
    for name, result in results["sets"].items():
        verdicts = ", ".join(f"{count:,} {verdict}" for verdict, count in result["verdicts"].items())
        console.print(f"  {name}: {verdicts}", highlight=False, markup=False, soft_wrap=True)


def metric_title(metric: str) -> str:
    """Name of a metric with the unit in which it is shown."""
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
