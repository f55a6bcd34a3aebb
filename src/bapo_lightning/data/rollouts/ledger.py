"""Fates of all work items: `ledger.jsonl`, one line for each, written when its fate is decided.

    {"epoch": 0, "problem": "37+85", "fate": "trained", "version": 16}
    {"epoch": 0, "problem": "12+40", "fate": "filtered", "reason": "all scores equal", "version": 16}

The file is append-only, and no item stands in it twice, also after a resume.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from bapo_lightning.data.rollouts.observer import AnyGroup, FileObserver
from bapo_lightning.types import Group, WorkItem


class Fate(StrEnum):
    """Fate of a work item."""

    TRAINED = "trained"  # its group entered training
    FILTERED = "filtered"  # sampled, but nothing could be learned from it
    DROPPED = "dropped"  # lost to staleness or to the end of the run


class Ledger(FileObserver):
    """Writes fates to a file."""

    size_key = "ledger_size"

    def on_undrawable(self, items: Sequence[WorkItem], version: int) -> None:
        """See `Observer`."""
        self._write(items, Fate.FILTERED, version, "prompt too long")

    def on_evict(self, groups: Sequence[AnyGroup], version: int) -> None:
        """See `Observer`."""
        self._write([group.item for group in groups], Fate.DROPPED, version, "too old")

    def on_take(self, batch: Sequence[Group], filtered: Sequence[Group], version: int) -> None:
        """See `Observer`."""
        self._write([group.item for group in batch], Fate.TRAINED, version)
        self._write([group.item for group in filtered], Fate.FILTERED, version, "all scores equal")

    def on_end(self, groups: Sequence[AnyGroup], version: int) -> None:
        """See `Observer`."""
        self._write([group.item for group in groups], Fate.DROPPED, version, "the run ended")

    def _write(self, items: Sequence[WorkItem], fate: Fate, version: int, reason: str | None = None) -> None:
        """Writes one line per item."""
        why = {"reason": reason} if reason is not None else {}
        self._journal.append(
            {"epoch": item.epoch, "problem": item.problem.id, "fate": fate, **why, "version": version}
            for item in items
        )
