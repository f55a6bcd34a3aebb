"""Rollout batches through the scheduler, filled by the trainer's thread itself between two updates."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from bapo_lightning.data.rollouts.group_state import ArrayStore
from bapo_lightning.data.rollouts.running_group import SampledPass
from bapo_lightning.data.rollouts.sampler import RolloutSampler
from bapo_lightning.data.rollouts.schedule import TrainerEvent
from bapo_lightning.data.rollouts.scheduler import RolloutScheduler
from bapo_lightning.types import Group


@dataclass(frozen=True, slots=True)
class TrainerState:
    """The trainer's progress between two updates."""

    version: int  # policy version: updates in the weights
    clock: int  # updates attempted: more than `version` when some were skipped


@dataclass(eq=False)
class Collector(ABC):
    """Fills rollout batches; called by the trainer's thread between updates. The defaults do nothing."""

    scheduler: RolloutScheduler  # decides what is sampled
    sampler: RolloutSampler  # whose engine is used
    refresh_engine: Callable[[], None]  # gives it the trainer's current weights, in the trainer's thread

    @abstractmethod
    def next_groups(self, needed: int, state: TrainerState) -> list[Group]:
        """Returns `needed` groups that may enter training now; waits for them."""

    def between_updates(self, state: TrainerState) -> None:  # noqa: B027 - a default, not a gap
        """Called before an update that needs no new groups."""

    def note(self, event: TrainerEvent) -> None:  # noqa: B027 - a default, not a gap
        """Records an event of the trainer, for replay. The caller holds the scheduler's lock."""

    def exclusive_engine(self, state: TrainerState) -> AbstractContextManager[None]:
        """Context in which the engine is the trainer's alone."""
        return nullcontext()

    def close(self) -> bool:
        """Stops generating; returns whether no thread uses the engine any more. May be called twice."""
        return True

    def state_dict(self, store: ArrayStore) -> dict[str, Any]:
        """State that the scheduler's does not have, as primitives; tokens and log-probs go into `store`."""
        return {}

    def load_state_dict(self, state: dict[str, Any], store: ArrayStore) -> None:  # noqa: B027
        """Restores a state."""


class SyncCollector(Collector):
    """Generates while training waits, by its newest weights, and then leaves the device to the trainer."""

    def next_groups(self, needed: int, state: TrainerState) -> list[Group]:
        """Makes passes until the batch is full."""
        self.scheduler.drop_late(state.version)
        if not self.scheduler.has_batch(needed):
            self.refresh_engine()
            while not self.scheduler.has_batch(needed):
                self._pass(needed, state)
                self.scheduler.drop_late(state.version)
            self.sampler.engine.sleep()
        return self.scheduler.take_batch(needed, state.version)

    def _pass(self, needed: int, state: TrainerState) -> None:
        requests = self.scheduler.schedule(state.clock, needed, state.version)
        start = time.perf_counter()
        continued = self.sampler.continued(requests, self.scheduler.running)
        sampled = time.perf_counter()
        finished = self.scheduler.postprocess(SampledPass(requests, continued, sampled - start))
        groups = self.sampler.score(finished, state.version)
        self.scheduler.add_scored(finished, groups, time.perf_counter() - sampled)
