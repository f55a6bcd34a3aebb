"""Observers of a scheduler, and the ledger: `ledger.jsonl` has one line for each work item, written when its
fate is decided. It is append-only, and lists no item twice, also after a resume.

    {"epoch": 0, "problem": "37+85", "fate": "trained", "version": 16}
    {"epoch": 0, "problem": "12+40", "fate": "filtered", "reason": "all scores equal", "version": 16}
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

from bapo_lightning.data.rollouts.running_group import RunningGroup, SampledPass
from bapo_lightning.rollout.engine import GenerationRequest
from bapo_lightning.system.run_folder.journal import Journal
from bapo_lightning.types import Group, Rollout, WorkItem

AnyGroup = Group | RunningGroup
Groups = Sequence[Group]
Running = Sequence[RunningGroup]
Requests = Sequence[GenerationRequest]
Moves = Sequence[tuple[Rollout, Rollout]]  # rollouts before and after a pass


class Observer:
    """Gets all events in order, under the scheduler's lock. `version` is the trainer's at that moment."""

    def on_undrawable(self, items: Sequence[WorkItem], version: int) -> None:
        """An epoch began in which these items cannot be drawn, since their prompts are too long."""

    def on_pass(self, engine_version: int, evicted: Running, requests: Requests, running: Running) -> None:
        """A pass over the `running` groups begins, after some were `evicted`."""

    def on_sampled(self, sampled: SampledPass, rollouts: Moves, finished: Running) -> None:
        """A pass is over, with groups that it completed."""

    def on_scored(self, again: Groups, ready: Groups, rejected: Groups, seconds: float) -> None:
        """Groups were scored within `seconds`. Groups in `again` are sampled once more."""

    def on_evict(self, groups: Sequence[AnyGroup], version: int) -> None:
        """Running or scored groups are too old."""

    def on_take(self, batch: Groups, filtered: Groups, version: int) -> None:
        """A batch enters training, and its rejected groups are `filtered`."""

    def on_end(self, groups: Sequence[AnyGroup], version: int) -> None:
        """The run ends before these groups enter training."""

    def on_event(self, event: str, **content: Any) -> None:
        """The trainer or a collector did something whose place in the order of events matters."""

    def state_dict(self) -> dict[str, Any]:
        """Returns entries of a checkpoint, under the observer's own keys."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores its entries from a state that also holds entries of others."""


class FileObserver(Observer):
    """An observer that writes rows into a file. A checkpoint holds the size of the file, and a resume cuts
    the file back to that size.
    """

    size_key: ClassVar[str]  # of the checkpoint's entry

    def __init__(self, path: Path) -> None:
        self.journal = Journal(path)

    def state_dict(self) -> dict[str, Any]:
        """See `Observer`; a thread may write more rows before the checkpoint is complete."""
        return {self.size_key: self.journal.size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Removes the rows after the checkpoint."""
        self.journal.cut(state[self.size_key])


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

    def on_take(self, batch: Groups, filtered: Groups, version: int) -> None:
        """See `Observer`."""
        self._write([group.item for group in batch], Fate.TRAINED, version)
        self._write([group.item for group in filtered], Fate.FILTERED, version, "all scores equal")

    def on_end(self, groups: Sequence[AnyGroup], version: int) -> None:
        """See `Observer`."""
        self._write([group.item for group in groups], Fate.DROPPED, version, "the run ended")

    def _write(self, items: Sequence[WorkItem], fate: Fate, version: int, reason: str | None = None) -> None:
        why = {"reason": reason} if reason is not None else {}
        self.journal.append(
            {"epoch": item.epoch, "problem": item.problem.id, "fate": fate, **why, "version": version}
            for item in items
        )
