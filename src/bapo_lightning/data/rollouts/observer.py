"""Who hears of what a scheduler does: the ledger, the recorder of schedules, the statistics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from bapo_lightning.data.rollouts.running_group import RunningGroup
from bapo_lightning.data.rollouts.sampled_pass import SampledPass
from bapo_lightning.errors import DataError
from bapo_lightning.rollout.engine import GenerationRequest
from bapo_lightning.run_folder.journal import Journal
from bapo_lightning.types import Group, Rollout, WorkItem

AnyGroup = Group | RunningGroup


class Observer:
    """Hears of everything under the scheduler's lock, in order; the methods do nothing. `version` is the
    trainer's policy version at that moment.
    """

    def on_undrawable(self, items: Sequence[WorkItem], version: int) -> None:
        """An epoch began, in which these cannot be drawn: their prompts are too long."""

    def on_pass(
        self,
        engine_version: int,
        evicted: Sequence[RunningGroup],
        requests: Sequence[GenerationRequest],
        running: Sequence[RunningGroup],
    ) -> None:
        """A pass over the `running` groups begins, after some were `evicted`."""

    def on_sampled(
        self,
        sampled: SampledPass,
        rollouts: Sequence[tuple[Rollout, Rollout]],
        finished: Sequence[RunningGroup],
    ) -> None:
        """A pass is over: `rollouts` before and after it, and the groups that it completed."""

    def on_scored(
        self, again: Sequence[Group], ready: Sequence[Group], rejected: Sequence[Group], seconds: float
    ) -> None:
        """Groups were scored within some seconds. Those in `again` are sampled once more."""

    def on_evict(self, groups: Sequence[AnyGroup], version: int) -> None:
        """Groups are too old, running ones or scored ones."""

    def on_take(self, batch: Sequence[Group], filtered: Sequence[Group], version: int) -> None:
        """A batch enters training, and its rejected groups are `filtered`."""

    def on_end(self, groups: Sequence[AnyGroup], version: int) -> None:
        """The run ends before these groups enter training."""

    def on_event(self, event: str, **content: Any) -> None:
        """The trainer or a collector did something whose place among all this matters."""

    def state_dict(self) -> dict[str, Any]:
        """Returns entries of a checkpoint, under keys of its own."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores its entries, which stand among those of others. Raises DataError where files lack some."""


class FileObserver(Observer):
    """One that writes a file of rows. A checkpoint has its length, and a resume cuts it back to that."""

    size_key: ClassVar[str]  # of the checkpoint's entry

    def __init__(self, path: Path) -> None:
        self._journal = Journal(path)

    def state_dict(self) -> dict[str, Any]:
        """See `Observer`; a thread may write on before the checkpoint is complete."""
        return {self.size_key: self._journal.size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Removes the rows after the checkpoint. Raises DataError when the file is shorter than that."""
        try:
            self._journal.cut(state[self.size_key])
        except ValueError as error:
            raise DataError(str(error)) from None
