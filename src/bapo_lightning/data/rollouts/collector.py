"""Scheduler and collector of each regime, and the synchronous collector.

    asynchronous  stream  scheduler           collector, if it follows no schedule   if it does
    no            no      RolloutScheduler    SyncCollector
    yes           no      RolloutScheduler    AsyncCollector                         ScheduledCollector
    yes           yes     StreamScheduler     AsyncCollector                         ScheduledCollector

A synchronous run imports nothing of the others.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, Protocol

from bapo_lightning.data.rollouts.group_state import ArrayStore
from bapo_lightning.data.rollouts.regime import Regime
from bapo_lightning.data.rollouts.sampler import RolloutSampler
from bapo_lightning.data.rollouts.schedule import Row, TrainerEvent
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
        """Context in which only the trainer uses the engine."""
        return nullcontext()

    def close(self) -> bool:
        """Stops generating; returns True if no thread uses the engine any more. May be called twice."""
        return True

    def state_dict(self, store: ArrayStore) -> dict[str, Any]:
        """Returns the collector's own state as primitives; tokens and log-probs go into `store`."""
        return {}

    def load_state_dict(self, state: dict[str, Any], store: ArrayStore) -> None:  # noqa: B027
        """Restores a state."""


class SyncCollector(Collector):
    """Generates with the newest weights while training waits, then leaves the device to the trainer."""

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
        finished = self.scheduler.postprocess(self.scheduler.sample(requests))
        sampled = time.perf_counter()
        groups = self.sampler.score(finished, state.version)
        self.scheduler.add_scored(finished, groups, time.perf_counter() - sampled)


class GivesWeights(Protocol):
    """Gives the engine the trainer's current weights."""

    def refresh_engine(self) -> None:
        """Gives them unless the engine has them."""

    def hand_over_weights(self) -> None:
        """Gives them unless the engine has them; does not prove them."""

    def push_weights(self) -> None:
        """Gives them in any case."""


def scheduler_kind(regime: Regime) -> type[RolloutScheduler]:
    """Returns the class of a regime's scheduler."""
    return _named("stream_scheduler:StreamScheduler") if regime.is_stream else RolloutScheduler


def collector_for(
    scheduler: RolloutScheduler,
    sampler: RolloutSampler,
    trainer: GivesWeights,
    needed: int,
    schedule: Sequence[Row] | None = None,
) -> Collector:
    """Returns the collector for batches of `needed` groups; it follows a recorded `schedule`, if any."""
    regime = scheduler.regime
    if not regime.async_generation:
        return SyncCollector(scheduler, sampler, trainer.refresh_engine)
    if schedule is not None:
        kind = _named("scheduled_collector:ScheduledCollector")
        return kind(scheduler, sampler, trainer.push_weights, needed, schedule)
    return _named("async_collector:AsyncCollector")(scheduler, sampler, trainer.hand_over_weights, needed)


MakeCollector = Callable[..., Collector]  # with the arguments of `collector_for`


def _named(name: str) -> type:
    return resolve_name(f"{__package__}.{name}")
