"""The tables of a study on the console: values per setting and staleness, then differences paired by seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bapo_lightning.report.comparison.study import (
    METRICS,
    StudyRow,
    reference_setting,
    study_notes,
    study_table,
)
from bapo_lightning.report.intervals import Interval

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_PLUS_MINUS = "\u00b1"


def print_study(
    runs: Sequence[dict[str, Any]], reference: str | None = None, console: Console | None = None
) -> None:
    """Print the table of `study.collect`'s runs, the paired differences to `reference`, and what was left
    out.
    """
    from rich.console import Console

    console = console or Console()
    rows = study_table(runs, reference)
    usable = [run for run in runs if run["problem"] is None]
    chosen = reference_setting(usable, reference)
    console.print(
        f"\n[bold]{len(usable)} of {len(runs)} runs[/], mean {_PLUS_MINUS} 95 % interval over seeds",
        highlight=False,
    )
    console.print(_fitting_table([(row, row.values) for row in rows], console, star=False))
    console.print()
    compared = [(row, row.differences) for row in rows if row.differences]
    if compared:
        console.print(
            f"[bold]Difference to {chosen}[/] at the same staleness, by seed; * = the interval excludes 0",
            highlight=False,
        )
        console.print(_fitting_table(compared, console, star=True))
        console.print()
    for note in study_notes(runs):
        console.print(f"  {note}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    console.print()


def _fitting_table(
    lines: Sequence[tuple[StudyRow, dict[str, Interval | None]]], console: Console, star: bool
) -> Table:
    """Mean and interval side by side where the console is wide enough, otherwise below each other."""
    wide = _table(lines, " ", star)
    # Measured on boundless paper: rich caps what it measures at the width it is given.
    needed = console.measure(wide, options=console.options.update(width=10_000)).maximum
    return wide if needed <= console.width else _table(lines, "\n", star)


def _table(lines: Sequence[tuple[StudyRow, dict[str, Interval | None]]], separator: str, star: bool) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("algorithm", overflow="fold", min_width=9)
    for title in ("stale-\nness", "runs", *(metric.title for metric in METRICS)):
        table.add_column(title, justify="right", no_wrap=True)
    for row, intervals in lines:
        num_seeds = max((interval.count for interval in intervals.values() if interval), default=0)
        texts = [_interval(intervals[metric.key], separator, star) for metric in METRICS]
        table.add_row(
            row.setting.replace(" ", "\n  "),
            row.condition.replace(", ", "\n").replace(" tokens a pass", "/pass"),
            str(num_seeds),
            *texts,
        )
    return table


def _interval(interval: Interval | None, separator: str, star: bool) -> str:
    if interval is None:
        return "-"
    mark = ("*" if interval.excludes_zero else " ") if star else ""
    decimals = (
        1 if abs(interval.mean) >= 10 else 3 if separator == " " else 2
    )  # all columns must fit 80 characters
    half_width = "n/a" if interval.half_width is None else f"{interval.half_width:.{decimals}f}"
    return f"{interval.mean:{'+' if star else ''}.{decimals}f}{mark}{separator}{_PLUS_MINUS}{half_width}"
