"""Compare finished runs: `python -m bapo_lightning.cli.compare RUNS [RUNS...] [--reference SETTING] [--output
DIR]`.

RUNS are run folders, globs, folders of runs such as those of sweeps, or wandb:ENTITY/PROJECT/GROUP. Writes
compare.html (one file that needs nothing else), compare.png, results.csv and curves.csv.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from bapo_lightning.errors import DataError
from bapo_lightning.run_folder.find import common_folder, find_runs
from bapo_lightning.run_folder.text_file import write_text

if TYPE_CHECKING:
    from bapo_lightning.report.comparison.table import Comparison

WANDB = "wandb:"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code: 0, or 2 when there is nothing to compare."""
    parser = runs_parser(
        "compare", __doc__, "RUNS", "run folder, glob, folder of runs, or wandb:ENTITY/PROJECT/GROUP"
    )
    parser.add_argument("--title", help="of the page (default: the name of the folder)")
    parsed = parser.parse_args(arguments)
    try:
        for path in compare_runs(parsed.runs, parsed.output, parsed.reference, parsed.title):
            print(f"  {path}")
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def compare_runs(
    named: Sequence[str], output: Path | None, reference: str | None, title: str | None
) -> list[Path]:
    """Compares the `named` runs, prints their table and writes the files; returns their paths.

    Raises:
        DataError: no run can be compared.
    """
    from bapo_lightning.report.comparison.files import write_curves, write_results
    from bapo_lightning.report.comparison.page import render_page
    from bapo_lightning.report.comparison.picture import draw_comparison

    comparison, target = print_compared(find_runs(fetch_groups(named, output)), output, reference)
    command = f'make compare RUNS="{" ".join(named)}"'
    command += f" ARGS=\"--reference '{reference}'\"" if reference else ""
    made_at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    title = title or f"Comparison: {target.resolve().name}"
    return [
        write_text(target / "compare.html", render_page(comparison, title, command, made_at)),
        draw_comparison(comparison, target / "compare.png"),
        write_results(comparison, target / "results.csv"),
        write_curves(comparison, target / "curves.csv"),
    ]


def print_compared(
    folders: Sequence[Path], output: Path | None, reference: str | None
) -> tuple[Comparison, Path]:
    """Compares runs and prints their table; returns the comparison and the folder for its files, which is
    made: `output`, or the one that the runs lie in.

    Raises:
        DataError: no run can be compared.
    """
    from bapo_lightning.report.comparison.console import print_comparison
    from bapo_lightning.report.comparison.settings import collect
    from bapo_lightning.report.comparison.table import compare

    comparison = compare(collect(folders), reference)
    target = output or common_folder(folders)
    target.mkdir(parents=True, exist_ok=True)
    print_comparison(comparison)
    return comparison, target


def fetch_groups(named: Sequence[str], output: Path | None) -> list[str]:
    """Fetches groups of W&B into run folders; returns the names with each group replaced by its folder.

    Raises:
        DataError: a group cannot be fetched.
    """
    from bapo_lightning.callbacks.loggers.wandb_group import fetch_group

    target = output or Path("outputs", "wandb")
    return [
        str(fetch_group(name.removeprefix(WANDB), target)) if name.startswith(WANDB) else name
        for name in named
    ]


def runs_parser(command: str, documentation: str, metavar: str, runs_help: str) -> argparse.ArgumentParser:
    """Makes the parser of a command on finished runs."""
    parser = argparse.ArgumentParser(
        prog=f"python -m bapo_lightning.cli.{command}", description=documentation.partition("\n")[0]
    )
    parser.add_argument("runs", nargs="+", metavar=metavar, help=runs_help)
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="where to write (default: where the runs are)"
    )
    parser.add_argument(
        "--reference",
        metavar="SETTING",
        help="algorithm or setting that differences are taken to (default: the first)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
