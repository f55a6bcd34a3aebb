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

from bapo_lightning.errors import DataError
from bapo_lightning.report.comparison.console import print_comparison
from bapo_lightning.report.comparison.files import write_curves, write_results
from bapo_lightning.report.comparison.page import render_page
from bapo_lightning.report.comparison.picture import draw_comparison
from bapo_lightning.report.comparison.settings import collect
from bapo_lightning.report.comparison.table import compare
from bapo_lightning.run_folder.find import common_folder, find_runs
from bapo_lightning.run_folder.text_file import write_text

WANDB = "wandb:"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code: 0, or 2 when there is nothing to compare."""
    parsed = _parser().parse_args(arguments)
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
    folders = find_runs(fetch_groups(named, output))
    comparison = compare(collect(folders), reference)
    target = output or common_folder(folders)
    target.mkdir(parents=True, exist_ok=True)
    made_at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    page = render_page(
        comparison, title or f"Comparison: {target.resolve().name}", command_of(named, reference), made_at
    )
    print_comparison(comparison)
    return [
        write_text(target / "compare.html", page),
        draw_comparison(comparison, target / "compare.png"),
        write_results(comparison, target / "results.csv"),
        write_curves(comparison, target / "curves.csv"),
    ]


def fetch_groups(named: Sequence[str], output: Path | None) -> list[str]:
    """Fetches groups of W&B into run folders; returns the names with each group replaced by its folder.

    Raises:
        DataError: a group cannot be fetched.
    """
    from bapo_lightning.callbacks.loggers.wandb import fetch_group

    target = output or Path("outputs", "wandb")
    return [
        str(fetch_group(name.removeprefix(WANDB), target)) if name.startswith(WANDB) else name
        for name in named
    ]


def command_of(named: Sequence[str], reference: str | None) -> str:
    """The command as a person would write it."""
    arguments = f" ARGS=\"--reference '{reference}'\"" if reference else ""
    return f'make compare RUNS="{" ".join(named)}"{arguments}'


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bapo_lightning.cli.compare", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUNS",
        help="run folder, glob, folder of runs, or wandb:ENTITY/PROJECT/GROUP",
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="where to write (default: where the runs are)"
    )
    parser.add_argument(
        "--reference",
        metavar="SETTING",
        help="algorithm or setting that differences are taken to (default: the first)",
    )
    parser.add_argument("--title", help="of the page (default: the name of the folder)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
