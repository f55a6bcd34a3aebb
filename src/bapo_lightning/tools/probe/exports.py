"""Folders of models or adapters that a trainer writes one after another."""

from __future__ import annotations

import glob
import time
from dataclasses import dataclass
from pathlib import Path

from bapo_lightning.system.errors import ConfigError
from bapo_lightning.tools.probe.adapter import is_adapter

WEIGHTS = ("*.safetensors", "*.bin")


@dataclass(frozen=True, slots=True)
class Export:
    """A model folder at one time."""

    path: str
    stamp: tuple[float, int]  # time of its newest file, and bytes of all


def newest_export(pattern: str) -> Export | None:
    """Returns the newest model folder of a path or glob, or directly below one; None if there is none."""
    matches = [Path(match) for match in glob.glob(pattern)]
    folders = [folder for match in matches for folder in (match, *match.glob("*/"))]
    exports = filter(None, map(_export, folders))
    return max(exports, key=lambda export: export.stamp, default=None)


def next_export(pattern: str, last: Export | None, interval: float) -> Export:
    """Waits for a model folder that is newer than `last`, and checks every `interval` seconds whether
    its files stopped changing. Raises ConfigError for a pattern that cannot match any.
    """
    if not Path(pattern).parent.exists() and not glob.has_magic(pattern):
        raise ConfigError([f"FOLDER={pattern}: --watch needs a folder here, or a glob of folders"])
    seen: Export | None = None
    while True:
        newest = newest_export(pattern)
        if newest is not None and newest != last and newest == seen:
            return newest
        seen = newest
        time.sleep(interval)


def _export(folder: Path) -> Export | None:
    has_config = (folder / "config.json").is_file() or is_adapter(folder)
    if not has_config or not any(any(folder.glob(kind)) for kind in WEIGHTS):
        return None
    try:
        stats = [file.stat() for file in folder.iterdir()]
    except FileNotFoundError:  # it is being replaced
        return None
    return Export(str(folder), (max(each.st_mtime for each in stats), sum(each.st_size for each in stats)))
