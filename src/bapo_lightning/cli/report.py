"""Report on finished runs: `python -m bapo_lightning.cli.report FOLDER [FOLDER...] [--output DIR]`.

One run folder: its summary and plots again. Several, a glob, or a folder of runs: the table of a study.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from bapo_lightning.errors import DataError
from bapo_lightning.report.comparison.study import collect, write_study
from bapo_lightning.report.comparison.study_console import print_study
from bapo_lightning.report.run.console import print_summary
from bapo_lightning.report.run.plots import plot_run
from bapo_lightning.report.run.summary import write_summary

SWEEP_RECORD = "sweep.json"  # in the folder of a sweep: the runs that belong to it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0, or 2 when there is nothing to report on."""
    parsed = _parser().parse_args(arguments)
    try:
        folders = find_runs(parsed.folders)
        if len(folders) == 1:
            _report_run(folders[0], parsed.output)
        else:
            _report_study(folders, parsed.output, parsed.reference)
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def find_runs(patterns: Sequence[str]) -> list[Path]:
    """Run folders meant by paths, globs and folders that hold runs; sorted, each once. A path that does not
    exist is kept.

    Raises:
        DataError: a glob matches nothing.
    """
    found: set[Path] = set()
    for pattern in patterns:
        matches = [Path(match) for match in glob.glob(pattern) if Path(match).is_dir()]
        if not matches and glob.has_magic(pattern):
            raise DataError(
                f"no folder matches {pattern!r}; give run folders like outputs/<experiment>/<run>"
            )
        for folder in matches or [Path(pattern)]:
            runs = (
                []
                if _is_run(folder)
                else [child for child in folder.glob("*") if _is_run(child)] + _planned_runs(folder)
            )
            found.update(runs or [folder])
    return sorted(found)


def _planned_runs(folder: Path) -> list[Path]:
    """Runs that a sweep has in `folder`, also those that failed before they had a folder of their own."""
    try:
        return [
            folder / run for run in json.loads((folder / SWEEP_RECORD).read_text(encoding="utf-8"))["runs"]
        ]
    except (OSError, ValueError, KeyError):
        return []


def _is_run(folder: Path) -> bool:
    # A run that failed while it was set up has its configuration only; it must show up as left out.
    return any((folder / name).exists() for name in ("manifest.json", "config.yaml"))


def _report_run(folder: Path, output: Path | None) -> None:
    summary = write_summary(folder, output)
    plot_run(folder, output)
    print_summary(summary, output or folder)


def _report_study(folders: Sequence[Path], output: Path | None, reference: str | None) -> None:
    runs = collect(folders)
    target = output or Path(os.path.commonpath([folder.resolve().parent for folder in folders]))
    written = write_study(runs, target, reference)
    print_study(runs, reference)
    for path in written:
        print(f"  {path}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bapo_lightning.cli.report", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "folders",
        nargs="+",
        metavar="FOLDER",
        help="run folder, glob, or folder of runs; several make a study",
    )
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
