"""Holds all groups on their way from the problem stream to training, and the rules by which they move. One
state, no threads; only `sample` uses the engine.

    stream --schedule--> running --postprocess--> scored --add_scored--> ready --take_batch--> training
                            |                               |              |
                            +-> too old: dropped            |              +-> too old: dropped
                                                            +-> rejected --take_batch--> filtered, or
                                                                (refused by a rule)      fills the batch

A collector holds `lock` while it calls any method but `sample`. Sizes: P groups in a rollout batch, U updates
on it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeVar

from bapo_lightning.data.problems.stream import ProblemStream
from bapo_lightning.data.rollouts.conversations import Rounds
from bapo_lightning.data.rollouts.group_state import (
    ArrayStore,
    ProblemOfId,
    pack_group,
    pack_running,
    unpack_group,
    unpack_running,
)
from bapo_lightning.data.rollouts.observer import AnyGroup, FileObserver, Observer, RolloutStatistics
from bapo_lightning.data.rollouts.regime import Regime
from bapo_lightning.data.rollouts.running_group import STEPS, RunningGroup, SampledPass
from bapo_lightning.data.rollouts.sampler import RolloutSampler
from bapo_lightning.rollout.engine import GenerationRequest
from bapo_lightning.types import Group, Rollout, WorkItem


@dataclass(eq=False)
class StartOrder:
    """Order in which groups enter training: as they become ready, or as they were started, within a window.

        window = 3:   [taken] [running] [ready] [ready] | [ready]
                               oldest    may     may       must wait until the oldest has entered

    This is the windowed FIFO of MiniMax (arXiv 2605.26494, section 6.2.4) and TitanRL. The window begins at
    the oldest group that has not entered training, whatever has entered around it, so that at most `window` -
    1 later groups enter before a given group.
    """

    window: int | None  # of items, counted from the oldest; None: groups enter as they become ready
    _items: deque[WorkItem] = field(default_factory=deque, init=False)

    def add(self, items: Iterable[WorkItem]) -> None:
        """Notes that items were started."""
        if self.window is not None:
            self._items.extend(items)

    def choose(self, ready: Sequence[Group], running: Iterable[WorkItem], count: int) -> list[Group]:
        """Returns at most `count` of the `ready` groups that may enter training next. `ready` is in the order
        in which groups became ready; `running` are the items in progress.
        """
        if self.window is None:
            return list(ready[:count])
        waiting = {group.item: group for group in ready}
        present = {*waiting, *running}
        while self._items and self._items[0] not in present:
            self._items.popleft()
        order = deque(self._items)
        chosen: list[Group] = []
        while len(chosen) < count:
            while order and order[0] not in present:
                order.popleft()
            item = next((item for item in islice(order, self.window) if item in waiting), None)
            if item is None:
                break
            chosen.append(waiting.pop(item))
            present.discard(item)
        return chosen

    def state_dict(self) -> list[list[Any]]:
        """Returns the items as primitives."""
        return [[item.problem.id, item.epoch] for item in self._items]

    def load_state_dict(self, state: list[list[Any]], problem: ProblemOfId) -> None:
        """Restores a state. Raises DataError for an unknown problem."""
        self._items = deque(WorkItem(problem(name), epoch) for name, epoch in state)


G = TypeVar("G", Group, RunningGroup)


@dataclass(eq=False)
class RolloutScheduler:
    """Starts only groups that can be trained on in time, drops groups that are too old, calls observers."""

    stream: ProblemStream
    sampler: RolloutSampler  # turns work items into scored groups
    regime: Regime  # bounds the age of groups and how far generation runs ahead
    group_size: int  # G, responses per problem
    groups_per_batch: int  # P
    num_batches: int  # of the whole run; only groups that a batch will need are started
    observers: Sequence[Observer] = ()
    lock: threading.RLock = field(default_factory=threading.RLock, init=False)  # a thread may generate
    statistics: RolloutStatistics = field(default_factory=RolloutStatistics, init=False)
    # Groups started and not yet scored; the requests of a pass refer to them by number.
    running: list[RunningGroup] = field(default_factory=list, init=False)
    _ready: deque[Group] = field(default_factory=deque, init=False)
    _rejected: list[Group] = field(default_factory=list, init=False)
    _num_entered: int = field(default=0, init=False)  # places in rollout batches that are finally filled
    # Passes that started groups for the next batch; for a stream, number of groups started for it.
    _rounds: int = field(default=0, init=False)
    _swept: tuple[int, int] | None = field(default=None, init=False)  # versions for which no group is too old

    def __post_init__(self) -> None:
        self._order = StartOrder(self.regime.window)
        self._observers = (self.statistics, *self.observers)

    @property
    def num_ready(self) -> int:
        """Scored groups that wait to be trained on."""
        return len(self._ready)

    @property
    def journal_sizes(self) -> dict[str, int]:
        """Sizes in bytes of the files that observers write, by name. The caller holds `lock`."""
        journals = [each.journal for each in self.observers if isinstance(each, FileObserver)]
        return {journal.path.name: journal.size for journal in journals}

    @property
    def finished(self) -> list[RunningGroup]:
        """Complete groups, to be scored."""
        return [group for group in self.running if group.is_finished]

    def num_startable(self, clock: int, needed: int) -> int:
        """Returns the number of groups that may be started now so that all of them can be trained on in time
        if groups enter training in order.

        Group number n (from 0, of trained groups) enters training with batch floor(n / P), at clock U *
        floor(n / P) and not before, and is last used U - 1 later. Sampled with weights of clock s, it is then
        at most U * floor(n / P) + U - 1 - s updates old, which is within the bound A exactly if n < P *
        floor((s + A + 1) / U). With A = U - 1 this is synchronous training: as many as the next batch still
        needs. In a window of W groups (`StartOrder`) it enters as number n + W - 1 at the latest. Also, at
        most P start in a pass, and no more are in flight than passes can keep busy (`Regime.natural_age`);
        with generation during training age and `batches_in_flight` bound the groups that wait. `clock` is s,
        updates attempted when the engine got its weights, `needed` the number of fresh groups in the next
        batch.
        """
        places = self._num_entered + len(self._ready) + len(self.running)
        waiting = places - self._num_entered + len(self._rejected)
        if self._rejected and self._rounds_are_over and waiting >= needed:
            return 0
        in_time = self.groups_per_batch * (
            (clock + self.regime.admission_age + 1) // self.regime.updates_per_rollout_batch
        ) - ((self.regime.window or 1) - 1)
        if self.regime.batches_in_flight is not None:
            in_flight = self.groups_per_batch * self.regime.batches_in_flight
            in_time = min(in_time, self._num_entered + in_flight)
        left = self.groups_per_batch * self.num_batches - places
        return max(0, min(self.groups_per_batch, in_time - places, left, self._room(needed)))

    def has_work(self, clock: int, needed: int) -> bool:
        """Whether a pass with weights of this clock would do anything."""
        return bool(self.running) or self.num_startable(clock, needed) > 0

    def schedule(self, clock: int, needed: int, version: int) -> list[GenerationRequest]:
        """Drops groups that would be too old, starts groups that may start, and returns the requests of one
        pass over all running groups, at the trainer's `version`. `clock`, `needed`: see `num_startable`.
        """
        evicted = self._give_up_late_ones(version)
        count = self.num_startable(clock, needed)
        if count:
            items = self._next_items(count, version)
            self.running += self.sampler.start(items, self.group_size)
            self._order.add(items)
            self._count_started(count)
        regime = self.regime
        if regime.is_partial:
            for group in self.running:
                group.cut_at_segments(regime.segments_bound, self.sampler.engine.version)
        limit = regime.partial_tokens or regime.max_new_tokens
        requests = self._requests(limit)
        for observer in self._observers:
            observer.on_pass(self.sampler.engine.version, evicted, requests, self.running)
        return requests

    def sample(
        self,
        requests: Sequence[GenerationRequest],
        once: bool = False,
        rounds: Sequence[Sequence[int]] | None = None,
        steps: int = STEPS,
    ) -> SampledPass:
        """Makes a pass over the requests of `schedule`. With `once` it is lost if the engine dies; otherwise
        it is repeated. `rounds`: recorded ones, to be repeated; `steps`: see `StreamScheduler`.
        """
        start, taken = time.perf_counter(), Rounds(rounds) if once else None
        continued = self.sampler.continued(requests, self.running, once=once, rounds=taken)
        return SampledPass(requests, continued, time.perf_counter() - start, taken.taken if taken else ())

    def postprocess(self, sampled: SampledPass) -> list[RunningGroup]:
        """Stores the tokens of a pass and returns the complete groups, to be scored. The call of `schedule`
        that made its requests must be the last one.
        """
        before_and_after = self._keep(sampled)
        finished = self.finished
        for observer in self._observers:
            observer.on_sampled(sampled, before_and_after, finished)
        return finished

    def add_scored(self, finished: Sequence[RunningGroup], groups: Sequence[Group], seconds: float) -> None:
        """Moves the `finished` groups of `postprocess`, now scored as `groups` within `seconds`, to the next
        stage. Groups that get a hint keep their places and are sampled once more.
        """
        self.running = self._without(finished, self.running)
        retried, ready, rejected = list[Group](), list[Group](), list[Group]()
        for group in groups:
            if (restarted := self.sampler.restarted_group(group)) is not None:
                self.running.append(restarted)
                retried.append(group)
            else:
                (ready if self.sampler.rules.admits(group) else rejected).append(group)
        self._ready += ready
        self._rejected += rejected
        for observer in self._observers:
            observer.on_scored(retried, ready, rejected, seconds)

    def drop_late(self, version: int) -> None:
        """Drops groups that may no longer enter training at policy `version`."""
        late = [
            group
            for group in [*self._ready, *self._rejected]
            if self.regime.is_evicted(group.oldest_version, group.newest_version, version)
        ]
        if late:
            self._ready = deque(self._without(late, self._ready))
            self._rejected = self._without(late, self._rejected)
            for observer in self._observers:
                observer.on_evict(late, version)

    def has_batch(self, needed: int) -> bool:
        """Whether `needed` groups can enter training; after `drop_late`."""
        fill = len(self._rejected) if self._rounds_are_over and not self.running else 0
        if len(self._ready) + fill < needed:
            return False
        return len(self._next_ready(needed)) + fill >= needed

    def take_batch(self, needed: int, version: int) -> list[Group]:
        """Returns the next batch in the order of `StartOrder`; call `has_batch` first. Rejected groups fill
        missing places, with advantages of zero: groups of equal scores may still differ in length, which
        alone must not train them. The other rejected groups are filtered.
        """
        batch = self._next_ready(needed)
        self._ready = deque(self._without(batch, self._ready))
        filled = needed - len(batch)
        for group in self._rejected[:filled]:
            batch.append(replace(group, advantages=(0.0,) * len(group.advantages)))
        filtered, self._rejected = self._rejected[filled:], []
        for observer in self._observers:
            observer.on_take(batch, filtered, version)
        self._num_entered += needed
        self._rounds = 0
        return batch

    def enter_replayed(self, count: int) -> None:
        """Counts the places in the next batch taken by groups of earlier batches."""
        self._num_entered += count

    def drop_rest(self, version: int) -> None:
        """Drops everything at the end of the run."""
        left: list[AnyGroup] = [*self.running, *self._ready, *self._rejected]
        for observer in self._observers:
            observer.on_end(left, version)
        self.running, self._ready, self._rejected = [], deque(), []

    def note(self, event: str, **content: Any) -> None:
        """Notifies the observers of an event of the trainer or a collector."""
        for observer in self._observers:
            observer.on_event(event, **content)

    def describe(self) -> str:
        """Returns its content in words."""
        tokens = sum(group.num_tokens for group in self.running)
        started = f", {len(self.running)} groups started ({tokens} tokens)" if self.running else ""
        ready = f", {self.num_ready} groups ready" if self._ready else ""
        return f"{self.stream.describe()}{started}{ready}"

    def state_dict(self, store: ArrayStore) -> dict[str, Any]:
        """Returns its state as primitives; tokens and log-probs go into `store`."""
        state = {
            "stream": self.stream.state_dict(),
            "running": [pack_running(store, group) for group in self.running],
            "ready": [pack_group(store, group) for group in self._ready],
            "rejected": [pack_group(store, group) for group in self._rejected],
            "num_entered": self._num_entered,
            "rounds": self._rounds,
            "order": self._order.state_dict(),
        }
        state |= self.sampler.journal.state_dict()
        for observer in self._observers:
            state |= observer.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any], store: ArrayStore) -> None:
        """Restores a state. Raises DataError if the training set is not the checkpoint's."""
        problem = self.stream.problem
        self.stream.load_state_dict(state["stream"])
        self.running = [unpack_running(store, packed, problem) for packed in state["running"]]
        self._ready = deque(unpack_group(store, packed, problem) for packed in state["ready"])
        self._rejected = [unpack_group(store, packed, problem) for packed in state["rejected"]]
        self._num_entered, self._rounds = state["num_entered"], state["rounds"]
        self._order.load_state_dict(state["order"], problem)
        for observer in self._observers:
            observer.load_state_dict(state)
        self.sampler.journal.load_state_dict(state)

    @property
    def _rounds_are_over(self) -> bool:
        return self._rounds >= self.sampler.rules.max_rounds

    def _room(self, needed: int) -> int:
        """Returns how many groups may start before more are in flight than passes can keep busy."""
        ahead = self.groups_per_batch * (self.regime.segments_bound - 1)
        waiting = 0 if self.regime.async_generation else len(self._ready)
        return needed + ahead - len(self.running) - waiting

    def _count_started(self, count: int) -> None:
        self._rounds += 1

    def _requests(self, limit: int) -> list[GenerationRequest]:
        return self.sampler.requests(self.running, limit)

    def _keep(self, sampled: SampledPass) -> list[tuple[Rollout, Rollout]]:
        before_and_after = []
        for number, rollout in sampled.continued.items():
            request = sampled.requests[number]
            rollouts = self.running[request.group].rollouts
            before_and_after.append((rollouts[request.index], rollout))
            rollouts[request.index] = rollout
        return before_and_after

    def _evictable(self) -> Sequence[RunningGroup]:
        return self.running

    def _next_ready(self, needed: int) -> list[Group]:
        return self._order.choose(tuple(self._ready), (group.item for group in self.running), needed)

    def _next_items(self, count: int, version: int) -> list[WorkItem]:
        before = self.stream.places
        items = self.stream.take(count)
        if undrawable := list(self.stream.never_drawn_since(before)):
            for observer in self._observers:
                observer.on_undrawable(undrawable, version)
        return items

    def _give_up_late_ones(self, version: int) -> list[RunningGroup]:
        newest = self.sampler.engine.version  # of the tokens that they would sample next
        if self._swept == (newest, version):
            return []
        self._swept = newest, version
        late = [
            group
            for group in self._evictable()
            if (old := group.oldest_version) is not None and self.regime.is_evicted(old, newest, version)
        ]
        self.running = self._without(late, self.running)
        for observer in self._observers:
            observer.on_evict(late, version)
        return late

    def _without(self, late: Sequence[G], groups: Iterable[G]) -> list[G]:
        gone = {id(group) for group in late}
        return [group for group in groups if id(group) not in gone]
