"""The table of several evaluations: on the console, as CSV, as markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bapo_lightning.report.markdown import markdown_table
from bapo_lightning.report.progress.terminal import Terminal, fits, in_parts, simple_table
from bapo_lightning.system.printable import printable
from bapo_lightning.system.run_folder.text_file import write_csv, write_text
from bapo_lightning.tools.evaluation.comparison import ComparisonRow
from bapo_lightning.tools.evaluation.console import estimate_text

HEADLINES = ("avg@", "pass@", "maj@")  # metrics that are shown; the CSV file has all
EXPLANATION = (
    "%, [95 % interval over problems]; differences are paired by problem, * = the interval excludes 0"
)
COLUMNS = ("value", "low", "high")
CSV_COLUMNS = (
    *("evaluation", "set", "num_problems", "k", "metric", *COLUMNS),
    *("reference", *(f"difference_{name}" for name in COLUMNS)),
)


def print_evaluations(
    rows: Sequence[ComparisonRow], reference: str, notes: Sequence[str], console: Console | None = None
) -> None:
    """Prints a table for each set: values, differences below them. Long names are numbers, listed above."""
    console = console or Terminal()
    console.print(f"\n{EXPLANATION}", highlight=False, markup=False)
    tables = {name: list(group) for name, group in _by_set(rows)}
    labels = {row.evaluation: row.evaluation for row in rows}
    columns = range(len(HEADLINES))
    if not all(fits(_table(name, group, labels, columns), console) for name, group in tables.items()):
        labels = {name: f"({number})" for number, name in enumerate(labels, 1)}
        for name, label in labels.items():
            console.print(f"  {label} {name}", markup=False, highlight=False, soft_wrap=True)
    for name, group in tables.items():
        console.print()
        for table in in_parts(partial(_table, name, group, labels), len(HEADLINES), console):
            console.print(table)
    console.print(f"\n+-: minus {reference}", highlight=False, markup=False, soft_wrap=True)
    for note in notes:
        console.print(f"  {note}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    console.print()


def _table(
    name: str, rows: Sequence[ComparisonRow], labels: Mapping[str, str], columns: Sequence[int]
) -> Table:
    table = simple_table(2)
    table.add_column(name, no_wrap=True)
    for number in columns:
        table.add_column(f"{HEADLINES[number]}k", justify="right", no_wrap=True)
    for row in rows:
        counts = Text(f"{row.num_problems} problems x {row.k}", style="dim")
        label = Text(f"{labels[row.evaluation]}\n") + counts
        table.add_row(label, *(_cell(row, HEADLINES[number]) for number in columns))
    return table


def write_values(rows: Sequence[ComparisonRow], reference: str, path: Path) -> Path:
    """Writes a line for each metric of each set of each evaluation; shares are not in percent."""
    lines: list[list[object]] = []
    for row in rows:
        for metric, estimate in row.values.items():
            difference = row.differences.get(metric)
            compared = [reference, *asdict(difference).values()] if difference else [None] * 4
            place = [row.evaluation, row.set_name, row.num_problems, row.k, metric]
            lines.append([*place, *asdict(estimate).values(), *compared])
    return write_csv(path, CSV_COLUMNS, lines)


def write_markdown(rows: Sequence[ComparisonRow], reference: str, notes: Sequence[str], path: Path) -> Path:
    """Writes the tables for use in a text."""
    lines = [EXPLANATION.replace("*", r"\*")]
    for name, group in _by_set(rows):
        titles = [text for title in HEADLINES for text in (f"{title}k", f"minus {reference}")]
        cells = []
        for row in group:
            texts = [text for title in HEADLINES for text in (_text(row, title), _text(row, title, True))]
            cells.append([row.evaluation, row.k, *(text.replace("*", r"\*") for text in texts)])
        lines += ["", markdown_table((name, "k", *titles), cells)]
    lines += ["", *(f"- {note}" for note in notes)] if notes else []
    return write_text(path, printable("\n".join(lines) + "\n"))


def _by_set(rows: Sequence[ComparisonRow]) -> Iterator[tuple[str, Iterator[ComparisonRow]]]:
    return groupby(rows, lambda row: row.set_name)  # rows are sorted by set


def _cell(row: ComparisonRow, title: str) -> Text:
    difference = Text("\n" + _text(row, title, True), style="dim") if row.differences else Text()
    return Text(_text(row, title)) + difference


def _text(row: ComparisonRow, title: str, is_difference: bool = False) -> str:
    metric = f"{title}{row.k}"
    estimate = (row.differences if is_difference else row.values).get(metric)
    return estimate_text(metric, asdict(estimate) if estimate else None, is_difference)
