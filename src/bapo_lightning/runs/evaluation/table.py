"""The table of several evaluations: on the console, as CSV, as markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.text import Text

from bapo_lightning.evaluation.bootstrap import Estimate
from bapo_lightning.evaluation.comparison import ComparisonRow
from bapo_lightning.run_folder.text_file import write_text
from bapo_lightning.runs.evaluation.console import estimate_text, simple_table

HEADLINES = ("avg@", "pass@", "maj@")  # metrics that are shown; the CSV file has all
EXPLANATION = (
    "%, [95 % interval over problems]; differences are paired by problem, * = the interval excludes 0"
)


def print_comparison(
    rows: Sequence[ComparisonRow], reference: str, notes: Sequence[str], console: Console | None = None
) -> None:
    """One table for each set: values, and below them the difference to the reference."""
    console = console or Console()
    console.print(f"\n{EXPLANATION}", highlight=False, markup=False)
    for name in dict.fromkeys(row.set_name for row in rows):
        table = simple_table()
        table.add_column(name, overflow="fold", ratio=1)
        for title in HEADLINES:
            table.add_column(f"{title}k", justify="right", no_wrap=True)
        for row in (row for row in rows if row.set_name == name):
            label = Text(f"{row.evaluation}\n") + Text(f"{row.num_problems} problems x {row.k}", style="dim")
            table.add_row(label, *(_cell(row, title) for title in HEADLINES))
        console.print()
        console.print(table)
    console.print(f"\n+-: minus {reference}", highlight=False, markup=False, soft_wrap=True)
    for note in notes:
        console.print(f"  {note}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    console.print()


def write_csv(rows: Sequence[ComparisonRow], reference: str, path: Path) -> Path:
    """A line for each metric of each set of each evaluation; shares as they are, not in percent."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = ("value", "low", "high")
    writer.writerow(
        [
            "evaluation",
            "set",
            "num_problems",
            "k",
            "metric",
            *columns,
            "reference",
            *(f"difference_{name}" for name in columns),
        ]
    )
    for row in rows:
        for metric, found in row.values.items():
            difference = row.differences.get(metric)
            compared = [reference, *asdict(difference).values()] if difference else [""] * 4
            writer.writerow(
                [
                    row.evaluation,
                    row.set_name,
                    row.num_problems,
                    row.k,
                    metric,
                    *asdict(found).values(),
                    *compared,
                ]
            )
    return write_text(path, text.getvalue())


def write_markdown(rows: Sequence[ComparisonRow], reference: str, notes: Sequence[str], path: Path) -> Path:
    """The tables for a text."""
    lines = [EXPLANATION.replace("*", "\\*")]
    for name in dict.fromkeys(row.set_name for row in rows):
        lines += [
            "",
            f"| {name} | k | {' | '.join(f'{title}k | minus {reference}' for title in HEADLINES)} |",
        ]
        lines.append("|---|---|" + "---|" * 2 * len(HEADLINES))
        for row in (row for row in rows if row.set_name == name):
            cells = [
                text
                for title in HEADLINES
                for text in (_text(row, row.values, title), _text(row, row.differences, title, True))
            ]
            lines.append(
                f"| {row.evaluation} | {row.k} | "
                f"{' | '.join(cell.replace('*', chr(92) + '*') for cell in cells)} |"
            )
    lines += ["", *(f"- {note}" for note in notes)] if notes else []
    return write_text(path, "\n".join(lines) + "\n")


def _cell(row: ComparisonRow, title: str) -> Text:
    value = Text(_text(row, row.values, title))
    return (
        value + Text("\n" + _text(row, row.differences, title, True), style="dim")
        if row.differences
        else value
    )


def _text(
    row: ComparisonRow, estimates: Mapping[str, Estimate], title: str, is_difference: bool = False
) -> str:
    metric = f"{title}{row.k}"
    found = estimates.get(metric)
    return estimate_text(metric, asdict(found) if found else None, is_difference)
