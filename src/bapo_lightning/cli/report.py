"""Reports on finished runs: `python -m bapo_lightning.cli.report FOLDER [FOLDER...] [--output DIR]`.

One run folder gets its summary and plots again. Several, a glob, or a folder of runs get one table, which is
printed and written as study.csv, study.json and study.png.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from bapo_lightning.cli.command import command, table_parser
from bapo_lightning.phases import phase
from bapo_lightning.report.comparison.console import print_comparison
from bapo_lightning.report.comparison.files import write_study
from bapo_lightning.report.comparison.picture import draw_comparison
from bapo_lightning.report.comparison.settings import collect
from bapo_lightning.report.comparison.table import Comparison, compare
from bapo_lightning.report.progress.display import phases_shown
from bapo_lightning.report.run.console import print_summary
from bapo_lightning.report.run.plots import plot_run
from bapo_lightning.report.run.summary import write_summary
from bapo_lightning.run_folder.find import common_folder, find_runs, swept_folder

RUNS = ("runs", ("SETTING", "algorithm or setting"))  # of a table: things compared, and their reference


@command(2)
def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command; its exit code is 2 when there is nothing to report on."""
    text = "run folder, glob, or folder of runs; several make a study"
    parsed = table_parser("report", __doc__, *RUNS, metavar="FOLDER", help=text).parse_args(arguments)
    folders = find_runs(parsed.folders)
    if len(folders) == 1:
        with phases_shown(), phase("drawing plots"):
            summary = write_summary(folders[0], parsed.output)
            plot_run(folders[0], parsed.output)
        print_summary(summary, parsed.output or folders[0])
        return
    comparison, target = compare_runs(
        folders, parsed.output or swept_folder(parsed.folders), parsed.reference
    )
    with phases_shown(), phase("drawing the comparison"):
        written = [*write_study(comparison, target), draw_comparison(comparison, target / "study.png")]
    print("\n".join(f"  {path}" for path in written))


def compare_runs(
    folders: Sequence[Path], output: Path | None, reference: str | None
) -> tuple[Comparison, Path]:
    """Compares runs and prints their table; returns the comparison and the folder for its files.

    Raises:
        DataError: no run can be compared.
    """
    with phases_shown(), phase("reading runs", len(folders)):
        comparison = compare(collect(folders), reference)
    target = output or common_folder(folders)
    target.mkdir(parents=True, exist_ok=True)
    print_comparison(comparison)
    return comparison, target


if __name__ == "__main__":
    sys.exit(main())
