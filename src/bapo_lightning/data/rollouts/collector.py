"""Who drives the rollout scheduler: training itself, between two updates (`SyncCollector`), or a thread
beside it (`background_rollouts.AsyncCollector`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from bapo_lightning.data.rollouts.sampler import Generate, RolloutSampler
from bapo_lightning.data.rollouts.scheduler import RolloutScheduler
from bapo_lightning.types import Group


@dataclass(frozen=True, slots=True)
class TrainerState:
    """Where training stands, between two updates."""

    version: int  # policy version: updates in the weights
    clock: int  # updates attempted: more than `version` when some were skipped


class Collector(Protocol):
    """Fills rollout batches. All calls come from the trainer's thread, between updates."""

    def next_groups(self, needed: int, state: TrainerState) -> list[Group]:
        """`needed` groups that may enter training now; waits for them."""
        ...

    def between_updates(self, state: TrainerState) -> None:
        """Called before an update that needs no new groups."""
        ...

    def exclusive_engine(self, state: TrainerState) -> AbstractContextManager[None]:
        """Context in which nobody else uses the engine."""
        ...

    def locked(self) -> AbstractContextManager[RolloutScheduler]:
        """Context in which the flow does not change."""
        ...

    def close(self) -> None:
        """Stop generating. Calling it twice is fine."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether nobody generates any more, after `close`."""
        ...


class SyncCollector:
    """Generates while training waits. Before the first pass of a batch the engine gets the trainer's weights,
    so that every pass samples with the newest; afterwards it leaves the device to the trainer.
    """

    def __init__(
        self,
        scheduler: RolloutScheduler,
        sampler: RolloutSampler,
        generate: Generate,
        refresh_engine: Callable[[], None],
    ) -> None:
        """
        Args:
            scheduler: what is on its way.
            sampler: whose engine is used.
            generate: samples all requests, whatever happens to the engine meanwhile.
            refresh_engine: gives the engine the trainer's current weights.
        """
        self._scheduler = scheduler
        self._sampler = sampler
        self._generate = generate
        self._refresh_engine = refresh_engine

    def next_groups(self, needed: int, state: TrainerState) -> list[Group]:
        """See `Collector.next_groups`."""
        scheduler = self._scheduler
        scheduler.drop_late(state.version)
        if not scheduler.has_batch(needed):
            self._refresh_engine()
            while not scheduler.has_batch(needed):
                self._pass(needed, state)
                scheduler.drop_late(state.version)
            self._sampler.engine.sleep()
        return scheduler.take_batch(needed, state.version)

    def between_updates(self, state: TrainerState) -> None:
        """Nothing is generated."""

    @contextmanager
    def exclusive_engine(self, state: TrainerState) -> Iterator[None]:
        """Nobody else uses it."""
        yield

    @contextmanager
    def locked(self) -> Iterator[RolloutScheduler]:
        """It changes only when asked for groups."""
        yield self._scheduler

    def close(self) -> None:
        """Nothing runs between calls."""

    @property
    def has_ended(self) -> bool:
        """Always."""
        return True

    def _pass(self, needed: int, state: TrainerState) -> None:
        planned = self._scheduler.schedule(state.clock, needed, state.version)
        start = time.perf_counter()
        generations = self._generate([item.request for item in planned]) if planned else []
        sampled = time.perf_counter()
        finished = self._scheduler.postprocess(planned, dict(enumerate(generations)), sampled - start)
        groups = self._sampler.score(finished, state.version)
        self._scheduler.add_scored(finished, groups, time.perf_counter() - sampled)
