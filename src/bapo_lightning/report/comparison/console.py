"""The short table of a comparison on the console: values per setting and condition, then differences."""

from __future__ import annotations

from collections.abc import Mapping

from rich import box
from rich.console import Console
from rich.table import Table

from bapo_lightning.report.comparison.runs import COLUMNS
from bapo_lightning.report.comparison.table import Cell, Comparison
from bapo_lightning.report.intervals import Interval

# For each of COLUMNS an interval, and whether it gets a star.
_Rows = Mapping[Cell, list[tuple[Interval | None, bool]]]


def print_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """Prints the table, the paired differences to the reference, and what was left out."""
    console = console or Console()
    counts = f"\n[bold]{len(comparison.usable)} of {len(comparison.runs)} runs[/]"
    console.print(f"{counts}, mean ± 95 % interval over seeds", highlight=False)
    results = {cell: [comparison.result(cell, column) for column in COLUMNS] for cell in comparison.cells}
    values = {cell: [(result.value, False) for result in row] for cell, row in results.items()}
    console.print(_fitting_table(values, console, star=False))
    console.print()
    differences = {
        cell: [(result.difference, result.verdict in ("more", "less")) for result in row]
        for cell, row in results.items()
        if comparison.is_compared(cell)
    }
    if differences:
        console.print(
            f"[bold]Difference to {comparison.reference}[/] at the same staleness, by seed; * = p < 0.05, "
            "corrected for all in a column",
            highlight=False,
        )
        console.print(_fitting_table(differences, console, star=True))
        console.print()
    for note in comparison.warnings:
        console.print(f"  {note}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    console.print()


def _fitting_table(rows: _Rows, console: Console, star: bool) -> Table:
    """Mean and interval side by side where the console is wide enough, otherwise below each other."""
    wide = _table(rows, " ", star)
    # Measured on boundless paper: rich caps what it measures at the width it is given.
    needed = console.measure(wide, options=console.options.update(width=10_000)).maximum
    return wide if needed <= console.width else _table(rows, "\n", star)


def _table(rows: _Rows, separator: str, star: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("algorithm", overflow="fold", min_width=9)
    for title in ("stale-\nness", "runs", *(column.title for column in COLUMNS)):
        table.add_column(title, justify="right", no_wrap=True)
    for (setting, condition), intervals in rows.items():
        table.add_row(
            setting.replace(" ", "\n  "),
            condition.replace(", ", "\n").replace(" tokens a pass", "/pass"),
            str(max((interval.count for interval, _ in intervals if interval), default=0)),
            *(_interval_text(*interval, separator, star) for interval in intervals),
        )
    return table


def _interval_text(interval: Interval | None, has_star: bool, separator: str, star: bool) -> str:
    if interval is None:
        return "-"
    mark = ("*" if has_star else " ") if star else ""
    # All columns must fit 80 characters.
    decimals = 1 if abs(interval.mean) >= 10 else 3 if separator == " " else 2
    return interval.text(decimals, "+" if star else "", between=f"{mark}{separator}±")
