"""Short tables of a comparison on the console: values per setting and condition, then differences.

If they are too wide, intervals move below the means; then settings become numbers, and tables are divided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from rich.console import Console
from rich.table import Table

from bapo_lightning.report.intervals import Interval
from bapo_lightning.report.paired import LESS, MORE
from bapo_lightning.report.progress.terminal import Terminal, fits, in_parts, simple_table
from bapo_lightning.tools.comparison.runs import COLUMNS
from bapo_lightning.tools.comparison.table import Cell, Comparison

# For each of COLUMNS an interval, and whether it gets a star.
_Rows = Mapping[Cell, list[tuple[Interval | None, bool]]]


@dataclass(frozen=True)
class _Layout:
    labels: Mapping[str, str]  # setting -> first cell of its rows
    between: str  # separates mean and interval

    def table(self, rows: _Rows, star: bool, columns: Sequence[int]) -> Table:
        table = simple_table(1)
        table.add_column("algorithm", no_wrap=True)
        for title in ("stale-\nness", "runs", *(COLUMNS[number].title for number in columns)):
            table.add_column(title, justify="right", no_wrap=True)
        for (setting, condition), intervals in rows.items():
            table.add_row(
                self.labels[setting],
                condition.replace(", ", "\n").replace(" tokens a pass", "/pass"),
                str(max((interval.count for interval, _ in intervals if interval), default=0)),
                *(_interval_text(*intervals[number], self.between, star) for number in columns),
            )
        return table

    def print(self, rows: _Rows, star: bool, console: Console) -> None:
        for table in in_parts(partial(self.table, rows, star), len(COLUMNS), console):
            console.print(table)


def print_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """Prints values, paired differences to the reference, and what was left out."""
    console = console or Terminal()
    counts = f"\n[bold]{len(comparison.usable)} of {len(comparison.runs)} runs[/]"
    console.print(f"{counts}, mean ± 95 % interval over seeds", highlight=False)
    results = {cell: [comparison.result(cell, column) for column in COLUMNS] for cell in comparison.cells}
    values = {cell: [(result.value, False) for result in row] for cell, row in results.items()}
    differences = {
        cell: [(result.difference, result.verdict in (MORE, LESS)) for result in row]
        for cell, row in results.items()
        if comparison.is_compared(cell)
    }
    layout, legend = _layout([(values, False), (differences, True)], console)
    layout.print(values, False, console)
    for line in legend:
        console.print(f"  {line}", style="dim", markup=False, highlight=False)
    console.print()
    if differences:
        console.print(
            f"[bold]Difference to {comparison.reference}[/] at the same staleness, by seed; * = p < 0.05, "
            "corrected for all comparisons of the page",
            highlight=False,
        )
        layout.print(differences, True, console)
        console.print()
    for note in comparison.warnings:
        console.print(f"  {note}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    console.print()


def _layout(tables: Sequence[tuple[_Rows, bool]], console: Console) -> tuple[_Layout, list[str]]:
    """The first layout in which all tables fit, or else the narrowest; and the meaning of its labels."""
    settings = list(dict.fromkeys(setting for rows, _ in tables for setting, _ in rows))
    whole = {setting: setting.replace(" ", "\n  ") for setting in settings}
    for between in (" ", "\n"):  # mean and interval side by side, or one below the other
        layout = _Layout(whole, between)
        if all(fits(layout.table(rows, star, range(len(COLUMNS))), console) for rows, star in tables):
            return layout, []
    labels, legend = dict[str, str](), list[str]()
    for setting in settings:
        algorithm, _, values = setting.partition(" ")
        labels[setting] = algorithm
        if values:
            number = sum(other.startswith(f"{algorithm} ") for other in labels)  # itself included
            labels[setting] = f"{algorithm} {number}"
            legend.append(f"{labels[setting]}: {values}")
    return _Layout(labels, "\n"), legend


def _interval_text(interval: Interval | None, has_star: bool, between: str, star: bool) -> str:
    if interval is None:
        return "-"
    mark = ("*" if has_star else " ") if star else ""
    # All columns must fit 80 characters.
    decimals = 1 if abs(interval.mean) >= 10 else 3 if between == " " else 2
    return interval.seen(decimals, "+" if star else "", between=f"{mark}{between}±")
