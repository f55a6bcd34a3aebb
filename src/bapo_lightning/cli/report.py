"""Report on finished runs: `python -m bapo_lightning.cli.report FOLDER [FOLDER...] [--output DIR]`.

One run folder gets its summary and plots again. Several, a glob, or a folder of runs get one table, which is
printed and written as study.csv, study.json and study.png.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from bapo_lightning.cli.compare import print_compared, runs_parser
from bapo_lightning.errors import DataError
from bapo_lightning.run_folder.find import find_runs


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code: 0, or 2 when there is nothing to report on."""
    help_text = "run folder, glob, or folder of runs; several make a study"
    parsed = runs_parser("report", __doc__, "FOLDER", help_text).parse_args(arguments)
    try:
        folders = find_runs(parsed.runs)
        if len(folders) == 1:
            _report_run(folders[0], parsed.output)
        else:
            _report_runs(folders, parsed.output, parsed.reference)
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _report_run(folder: Path, output: Path | None) -> None:
    from bapo_lightning.report.run.console import print_summary
    from bapo_lightning.report.run.plots import plot_run
    from bapo_lightning.report.run.summary import write_summary

    summary = write_summary(folder, output)
    plot_run(folder, output)
    print_summary(summary, output or folder)


def _report_runs(folders: Sequence[Path], output: Path | None, reference: str | None) -> None:
    from bapo_lightning.report.comparison.files import write_study
    from bapo_lightning.report.comparison.picture import draw_comparison

    comparison, target = print_compared(folders, output, reference)
    for path in [*write_study(comparison, target), draw_comparison(comparison, target / "study.png")]:
        print(f"  {path}")


if __name__ == "__main__":
    sys.exit(main())
