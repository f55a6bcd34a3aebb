"""A logger that also records what the whole run is about, and survives a resume."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger

Row = Mapping[str, Any]


class RunLogger(Logger):
    """Logger of a run: gets its configuration at the start, missing rows at a resume, its results at the end.

    Each method does nothing unless a logger overrides it. Any other Lightning logger works as well: it gets
    the rows of `log_metrics` alone.
    """

    def describe(self, config: Mapping[str, Any]) -> None:
        """Receives the resolved configuration, before any row: at the start, and at every resume."""

    def catch_up(self, rows: Sequence[Row]) -> None:
        """Brings the logger to the last of `rows`, the lines of metrics.jsonl up to the checkpoint of a
        resume.
        """

    def conclude(
        self, summary: Mapping[str, Any], manifest: Mapping[str, Any], rollouts: Sequence[Row]
    ) -> None:
        """Receives the results, however the run ended.

        Args:
            summary: summary of the run, from `write_summary`.
            manifest: manifest as it is at the end.
            rollouts: all rows of rollouts.jsonl, also those from before a resume.
        """


def read_rollouts(folder: Path) -> list[Row]:
    """Returns the rows of a run's `rollouts.jsonl`; none without the file."""
    path = folder / "rollouts.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [json.loads(line) for line in lines if line.strip()]
