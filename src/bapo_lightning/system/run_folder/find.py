"""Finds run folders by path, by glob or by their parent folder."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bapo_lightning.system.errors import DataError
from bapo_lightning.system.run_folder.record import read_manifest, read_mapping
from bapo_lightning.system.run_folder.shapes import Sweep

SWEEP_RECORD = "sweep.json"  # in the folder of a sweep: its runs


def find_runs(patterns: Sequence[str]) -> list[Path]:
    """Finds the runs that paths, globs and folders of runs name; sorted, each once. A path that does not
    exist is kept; files next to runs, which a shell's * names as well, are not. Raises DataError for a glob
    that matches nothing.
    """
    matched: set[Path] = set()
    for pattern in [name for name in patterns if not Path(name).is_file()] or patterns:
        matches = [Path(match) for match in glob.glob(pattern) if Path(match).is_dir()]
        if not matches and glob.has_magic(pattern):
            raise DataError(
                f"no folder matches {pattern!r}; give run folders like outputs/<experiment>/<run>"
            )
        for folder in matches or [Path(pattern)]:
            runs = (
                []
                if _is_run(folder)
                else [*filter(_is_run, folder.glob("*")), *(folder / run for run in planned_runs(folder))]
            )
            matched.update(runs or [folder])
    return sorted(matched)


def newest_run(runs: Sequence[Path]) -> Path:
    """The run whose metrics, or else configuration, were written last; a page or a plot does not count."""
    files = [run / name for run in runs for name in ("config.yaml", "metrics.jsonl")]
    return max(filter(Path.exists, files), key=lambda file: file.stat().st_mtime, default=files[0]).parent


def unfinished(parent: Path) -> list[str]:
    """Names of the newest runs in `parent`, three at most, that have not reached their end."""
    names = []
    for path in sorted(parent.glob("*/manifest.json"), key=lambda path: path.stat().st_mtime, reverse=True):
        with suppress(DataError):
            if read_manifest(path.parent).get("status") != "finished":
                names.append(path.parent.name)
    return names[:3]


def swept_folder(patterns: Sequence[str]) -> Path | None:
    """The folder of the sweep or multirun if `patterns` name nothing else; otherwise None."""
    folder = Path(*patterns) if len(patterns) == 1 else None
    return folder if folder is not None and (folder / SWEEP_RECORD).is_file() else None


def planned_runs(folder: Path) -> dict[str, dict[str, Any]]:
    """Names of the runs of a sweep, including those that made no folder, and what it knows of each; none
    without a sweep. Raises DataError if its file is corrupt.
    """
    path = folder / SWEEP_RECORD
    if not path.is_file():
        return {}
    runs: dict[str, dict[str, Any]] = read_mapping(path, Sweep, "remove it: runs are found without it")[
        "runs"
    ]
    return runs


def common_folder(folders: Sequence[Path]) -> Path:
    """The innermost folder that contains all `folders`."""
    return Path(os.path.commonpath([folder.resolve().parent for folder in folders]))


def _is_run(folder: Path) -> bool:
    # A run that failed during set-up has only its configuration; it must be reported as left out.
    return any((folder / name).exists() for name in ("manifest.json", "config.yaml"))
