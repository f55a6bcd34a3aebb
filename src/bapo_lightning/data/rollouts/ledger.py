"""Fates of all work items: `ledger.jsonl`, one line for each, written when its fate is decided.

    {"epoch": 0, "problem": "37+85", "fate": "trained", "version": 16}
    {"epoch": 0, "problem": "12+40", "fate": "filtered", "reason": "all scores equal", "version": 16}

The file is append-only. A checkpoint stores its length and a resume cuts it back to that, so that no item
stands in it twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

from bapo_lightning.errors import DataError
from bapo_lightning.run_folder.journal import Journal
from bapo_lightning.types import WorkItem


class Fate(StrEnum):
    """Fate of a work item."""

    TRAINED = "trained"  # its group entered training
    FILTERED = "filtered"  # sampled, but nothing could be learned from it
    DROPPED = "dropped"  # lost to staleness or to the end of the run


class Ledger:
    """Writes fates to a file."""

    def __init__(self, path: Path | None) -> None:
        """`path` of the file; None writes none."""
        self._journal = Journal(path) if path is not None else None

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._journal.size if self._journal is not None else 0

    def record(self, items: Iterable[WorkItem], fate: Fate, version: int, reason: str | None = None) -> None:
        """Writes one line per item; `version` is the trainer's policy version at this moment."""
        if self._journal is None:
            return
        why = {"reason": reason} if reason is not None else {}
        self._journal.append(
            {"epoch": item.epoch, "problem": item.problem.id, "fate": fate, **why, "version": version}
            for item in items
        )

    def cut(self, size: int) -> None:
        """Removes the lines after a checkpoint. Raises DataError when the file is shorter than that."""
        if self._journal is not None:
            try:
                self._journal.cut(size)
            except ValueError as error:
                raise DataError(str(error)) from None
