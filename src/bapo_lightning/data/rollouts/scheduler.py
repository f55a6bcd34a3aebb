"""Everything on its way from the problem stream to training, and the rules by which it moves. One state, no
threads, no engine.

    stream --schedule--> running --postprocess--> scored --add_scored--> ready --take_batch--> training
                            |                               |              |
                            +-> too old: dropped            |              +-> too old: dropped
                                                            +-> rejected --take_batch--> filtered, or
                                                                (refused by admission)   fills the batch

A collector calls these methods while it holds `lock`. Sizes: P groups in a rollout batch, U updates on it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from bapo_lightning.data.problems.stream import ProblemStream
from bapo_lightning.data.rollouts.admission import Admission
from bapo_lightning.data.rollouts.group_state import (
    ArrayStore,
    pack_group,
    pack_running,
    unpack_group,
    unpack_running,
)
from bapo_lightning.data.rollouts.ledger import Fate, Ledger
from bapo_lightning.data.rollouts.regime import Regime
from bapo_lightning.data.rollouts.running_group import RunningGroup
from bapo_lightning.data.rollouts.sampler import RolloutSampler
from bapo_lightning.data.rollouts.statistics import RolloutStatistics
from bapo_lightning.rollout.engine import Generation, GenerationRequest
from bapo_lightning.types import Group, WorkItem

G = TypeVar("G", Group, RunningGroup)


@dataclass(eq=False)
class RolloutScheduler:
    """Starts only what can be trained on in time, drops what is too old, and records every fate."""

    stream: ProblemStream
    sampler: RolloutSampler  # turns work items into scored groups
    admission: Admission  # chooses those that are trained on
    regime: Regime  # how old they may get, and how far generation runs ahead
    ledger: Ledger  # of every work item's fate
    group_size: int  # G, responses per problem
    groups_per_batch: int  # P
    num_batches: int  # of the whole run; nothing is started that no batch will need
    lock: threading.RLock = field(default_factory=threading.RLock, init=False)  # a thread may generate
    statistics: RolloutStatistics = field(default_factory=RolloutStatistics, init=False)
    _running: list[RunningGroup] = field(default_factory=list, init=False)
    _ready: deque[Group] = field(default_factory=deque, init=False)
    _rejected: list[Group] = field(default_factory=list, init=False)
    _num_entered: int = field(default=0, init=False)  # places in rollout batches that are filled for good
    _rounds: int = field(default=0, init=False)  # passes that started something for the batch to come

    @property
    def num_running(self) -> int:
        """Groups started and not yet scored."""
        return len(self._running)

    @property
    def num_ready(self) -> int:
        """Scored groups that wait to be trained on."""
        return len(self._ready)

    def num_startable(self, clock: int, needed: int) -> int:
        """Number of groups that may be started now so that all of them can be trained on in time, if groups
        enter training in order.

        Group number n (from 0, of those that are trained on) enters training with batch floor(n / P), at
        clock U * floor(n / P) and not before, and is last used U - 1 later. Sampled by weights of clock s it
        is then at most U * floor(n / P) + U - 1 - s updates old, which is within the bound A exactly if n < P
        * floor((s + A + 1) / U). With A = U - 1 this is synchronous training: as many as the next batch
        lacks. Besides, at most P start in a pass, and no more are in flight than passes can keep busy
        (`Regime.natural_age`); what waits beside training that overlaps is bounded by the age alone.

        Args:
            clock: s, updates attempted when the engine got its weights.
            needed: fresh groups in the next batch.
        """
        places = self._num_entered + len(self._ready) + len(self._running)
        if (
            self._rejected
            and self._rounds_are_over
            and places - self._num_entered + len(self._rejected) >= needed
        ):
            return 0
        in_time = self.groups_per_batch * (
            (clock + self.regime.admission_age + 1) // self.regime.updates_per_rollout_batch
        )
        ahead = self.groups_per_batch * (self.regime.segments_bound - 1)
        room = needed + ahead - len(self._running) - (0 if self.regime.async_generation else len(self._ready))
        left = self.groups_per_batch * self.num_batches - places
        return max(0, min(self.groups_per_batch, room, in_time - places, left))

    def has_work(self, clock: int, needed: int) -> bool:
        """Whether a pass under weights of this clock would sample anything."""
        return bool(self._running) or self.num_startable(clock, needed) > 0

    def schedule(self, clock: int, needed: int, version: int) -> list[GenerationRequest]:
        """Drops what would be too old, starts what may be started, and returns the requests of one pass over
        all running groups, at the trainer's `version`. `clock`, `needed`: see `num_startable`.
        """
        self._give_up_late_ones(version)
        count = self.num_startable(clock, needed)
        if count:
            self._running += self.sampler.start(self._next_items(count, version), self.group_size)
            self._rounds += 1
        regime = self.regime
        if regime.is_partial:
            for group in self._running:
                group.cut_at_segments(regime.segments_bound, self.sampler.engine.version)
        return self.sampler.requests(self._running, regime.partial_tokens or regime.max_new_tokens)

    def postprocess(
        self, requests: Sequence[GenerationRequest], generations: Mapping[int, Generation], seconds: float
    ) -> list[RunningGroup]:
        """Keeps the tokens of a pass and returns the groups that are complete, to be scored.

        `schedule`, which made `requests`, must not have been called again meanwhile. `generations` are by
        number of their request; a lost engine leaves gaps.
        """
        for number, generation in generations.items():
            group, index = self._running[requests[number].group], requests[number].index
            if sampled_before := group.rollouts[index].length:
                self.statistics.resumed += 1
                self.statistics.resumed_tokens += sampled_before
            group.extend(index, generation, self.regime.max_new_tokens)
            self.statistics.num_tokens += len(generation.segment.token_ids)
        self.statistics.rollout_seconds += seconds
        self.statistics.passes += 1
        return [group for group in self._running if group.is_finished]

    def add_scored(self, finished: Sequence[RunningGroup], groups: Sequence[Group], seconds: float) -> None:
        """Moves the `finished` groups of `postprocess` on, now scored as `groups` within `seconds`."""
        gone = {id(group) for group in finished}
        self._running = [group for group in self._running if id(group) not in gone]
        for group in groups:
            (self._ready if self.admission.admits(group) else self._rejected).append(group)
        self.statistics.count_groups(groups)
        self.statistics.reward_seconds += seconds

    def drop_late(self, version: int) -> None:
        """Drops groups that may no longer enter training at policy `version`."""
        self._ready = deque(self._kept(self._ready, version))
        self._rejected = self._kept(self._rejected, version)

    def has_batch(self, needed: int) -> bool:
        """Whether `needed` groups can enter training; after `drop_late`."""
        fill = len(self._rejected) if self._rounds_are_over and not self._running else 0
        return len(self._ready) + fill >= needed

    def take_batch(self, needed: int, version: int) -> list[Group]:
        """Returns the groups of the next batch, in the order in which they became ready; call `has_batch`
        first. Rejected groups fill it up where ready ones lack, with advantages of zero: groups of equal
        scores may still differ in length, which alone must not train them. The rest of them is filtered.
        """
        batch = [self._ready.popleft() for _ in range(min(needed, len(self._ready)))]
        filled = needed - len(batch)
        batch += [
            replace(group, advantages=tuple(0.0 for _ in group.advantages))
            for group in self._rejected[:filled]
        ]
        refused, self._rejected = self._rejected[filled:], []
        self.ledger.record([group.item for group in batch], Fate.TRAINED, version)
        self.ledger.record([group.item for group in refused], Fate.FILTERED, version, "all scores equal")
        self.statistics.dropped += len(refused)
        self.statistics.wasted_tokens += sum(group.num_tokens for group in refused)
        self._num_entered += needed
        self._rounds = 0
        return batch

    def enter_replayed(self, count: int) -> None:
        """Counts the places of the next batch that groups of earlier batches take."""
        self._num_entered += count

    def drop_rest(self, version: int) -> None:
        """Drops everything at the end of the run."""
        items = [
            *(group.item for group in self._running),
            *(group.item for group in [*self._ready, *self._rejected]),
        ]
        self.ledger.record(items, Fate.DROPPED, version, "the run ended")
        self._running, self._ready, self._rejected = [], deque(), []

    def describe(self) -> str:
        """Its content in words."""
        tokens = sum(group.num_tokens for group in self._running)
        begun = f", {self.num_running} groups begun ({tokens} tokens)" if self._running else ""
        ready = f", {self.num_ready} groups ready" if self._ready else ""
        return f"{self.stream.describe()}{begun}{ready}"

    def state_dict(self, store: ArrayStore) -> dict[str, Any]:
        """Its state as primitives; tokens and log-probs go into `store`."""
        return {
            "stream": self.stream.state_dict(),
            "running": [pack_running(store, group) for group in self._running],
            "ready": [pack_group(store, group) for group in self._ready],
            "rejected": [pack_group(store, group) for group in self._rejected],
            "num_entered": self._num_entered,
            "rounds": self._rounds,
            "statistics": asdict(self.statistics),
            "ledger_size": self.ledger.size,  # a thread may write on before the checkpoint is complete
        }

    def load_state_dict(self, state: dict[str, Any], store: ArrayStore) -> None:
        """Restores a state. Raises DataError for another training set or ledger than the checkpoint's."""
        problem = self.stream.problem
        self.stream.load_state_dict(state["stream"])
        self._running = [unpack_running(store, packed, problem) for packed in state["running"]]
        self._ready = deque(unpack_group(store, packed, problem) for packed in state["ready"])
        self._rejected = [unpack_group(store, packed, problem) for packed in state["rejected"]]
        self._num_entered, self._rounds = state["num_entered"], state["rounds"]
        self.statistics = RolloutStatistics(**state["statistics"])
        self.ledger.cut(state["ledger_size"])

    @property
    def _rounds_are_over(self) -> bool:
        return self._rounds >= self.admission.max_rounds

    def _next_items(self, count: int, version: int) -> list[WorkItem]:
        """Takes work items from the stream. The first one of an epoch decides the fate of the problems that
        cannot be drawn in it.
        """
        before = self.stream.places
        items = self.stream.take(count)
        self.ledger.record(self.stream.never_drawn_since(before), Fate.FILTERED, version, "prompt too long")
        return items

    def _give_up_late_ones(self, version: int) -> None:
        """Drops running groups that would be too old even if they entered training at once."""
        newest = self.sampler.engine.version  # of the tokens that they would sample next
        late = [
            group
            for group in self._running
            if (old := group.oldest_version) is not None and self.regime.is_evicted(old, newest, version)
        ]
        self._running = self._without(late, self._running, version)

    def _kept(self, groups: Sequence[Group], version: int) -> list[Group]:
        late = [
            group
            for group in groups
            if self.regime.is_evicted(group.oldest_version, group.newest_version, version)
        ]
        return self._without(late, groups, version)

    def _without(self, late: Sequence[G], groups: Sequence[G], version: int) -> list[G]:
        """Evicts the groups that are too late; returns the others."""
        self.ledger.record([group.item for group in late], Fate.DROPPED, version, "too old")
        self.statistics.evicted += len(late)
        self.statistics.wasted_tokens += sum(group.num_tokens for group in late)
        gone = {id(group) for group in late}
        return [group for group in groups if id(group) not in gone]
