"""The scheduler of a stream: responses stay in the engine from pass to pass, which is some decoding steps,
conversations wait for replies, and groups are scored during the next passes.

free --sample--> in the engine --turn ended--> waits for a reply --take_replies--> free
                      | ended as the group's last
                      v
                 being scored
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from bapo_lightning.data.rollouts.running_group import STEPS, RunningGroup, SampledPass, place
from bapo_lightning.data.rollouts.schedule import name_of
from bapo_lightning.data.rollouts.scheduler import RolloutScheduler, StartOrder
from bapo_lightning.rollout.engine import GenerationRequest, StreamCall, Streamed
from bapo_lightning.types import Group, Reply, Rollout

Place = tuple[int, int]  # identity of a running group, number of a sample in it


@dataclass(eq=False)
class StreamScheduler(RolloutScheduler):
    """Requests only samples that the engine does not have, in any number that admission allows."""

    # Called from any thread when a reply has come.
    on_reply: Callable[[], None] = field(default_factory=lambda: lambda: None, init=False)
    # Groups and samples in the engine by the number of their request, and these numbers by place.
    in_engine: dict[int, tuple[RunningGroup, int]] = field(default_factory=dict, init=False)
    _numbers: dict[Place, int] = field(default_factory=dict, init=False)
    # Groups that were running at the last pass, by identity; and groups whose samples must all be
    # checked, since one may be able to continue and not be in the engine.
    _known: dict[int, RunningGroup] = field(default_factory=dict, init=False)
    _unsettled: set[int] = field(default_factory=set, init=False)
    _waiting: dict[Place, tuple[RunningGroup, int, Future[Reply]]] = field(default_factory=dict, init=False)
    _scored: dict[int, RunningGroup] = field(default_factory=dict, init=False)  # being scored, by identity
    _given_up: list[int] = field(default_factory=list, init=False)  # numbers not yet reported to the engine
    _next_number: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.regime.stream is not None
        self.context = self.regime.stream
        # The oldest ready group enters first, since others may have overtaken it.
        self._order = StartOrder(self.regime.window or sys.maxsize)

    @property
    def finished(self) -> list[RunningGroup]:
        """Complete groups, to be scored."""
        return [group for group in self._evictable() if group.is_finished and not self.waiting(group)]

    def waiting(self, group: RunningGroup) -> list[int]:
        """Samples of a group that wait for a reply, in order."""
        return [index for index in range(len(group.rollouts)) if (id(group), index) in self._waiting]

    def has_work(self, clock: int, needed: int) -> bool:
        """Whether a pass with weights of this clock would do anything."""
        # A finished group waits for replies, or is about to be scored.
        goes_on = any(not (group.is_finished and self.waiting(group)) for group in self._evictable())
        return goes_on or bool(self._replies()) or self.num_startable(clock, needed) > 0

    def take_replies(self, recorded: Sequence[Any] | None = None) -> None:
        """Continues the rollouts whose replies have come, or waits for the replies of a `recorded` row."""
        there = self._replies()
        if not there and not recorded:
            return
        wanted = {(name, index) for name, numbers in recorded or () for index in numbers}
        taken: list[tuple[RunningGroup, list[int]]] = []
        for group in self.running:
            name = name_of(group)
            numbers = [
                index
                for index in self.waiting(group)
                if ((id(group), index) in there if recorded is None else (name, index) in wanted)
            ]
            if numbers:
                taken.append((group, numbers))
        if taken:
            self.note("replies", groups=[[name_of(group), numbers] for group, numbers in taken])
            for group, numbers in taken:
                self._unsettled.add(id(group))
                for index in numbers:
                    self._take_reply(group, index)

    def sample(
        self,
        requests: Sequence[GenerationRequest],
        once: bool = True,
        rounds: Sequence[Sequence[int]] | None = None,
        steps: int = STEPS,
    ) -> SampledPass:
        """Makes `steps` decoding steps of all responses in flight, among which the requests of `schedule`
        begin. If the engine dies, its requests are forgotten.
        """
        start = time.perf_counter()
        self._drop_others()
        entered = {self._enter(self.running[each.group], each.index): each for each in requests}
        self._known = {id(group): group for group in self.running}
        self._unsettled.clear()
        streamed = self._call(entered, steps)
        numbers = {id(group): number for number, group in enumerate(self.running)}
        held = [self.in_engine[number] for number in (self.in_engine if streamed is None else streamed)]
        places = [place(numbers[id(group)], index) for group, index in held]
        continued: dict[int, Rollout] = {}
        if streamed is None:
            self.lose_engine()
        for row, (number, each) in enumerate((streamed or {}).items()):
            group, index = held[row]
            rollout = group.rollouts[index]
            for segment in each.segments:
                finish = each.finish if segment is each.segments[-1] else None
                rollout = rollout.extended(segment, finish, self.sampler.max_new_tokens)
            continued[row] = rollout
            if each.finish is not None:
                self._leave(number)
        return SampledPass(places, continued, time.perf_counter() - start, steps=steps)

    def forget(self) -> None:
        """Lets the engine drop all its requests, so that a probe of new weights overlaps with none."""
        self.lose_engine()
        if self._given_up:
            self._call({}, 0)

    def lose_engine(self) -> None:
        """Forgets the samples in the engine, which will be requested again."""
        self._give_up(list(self.in_engine))
        self._unsettled |= self._known.keys()

    def postprocess(self, sampled: SampledPass) -> list[RunningGroup]:
        """See `RolloutScheduler.postprocess`; complete groups are scored during the next passes."""
        finished = super().postprocess(sampled)
        self.begin_scoring(finished)
        return finished

    def begin_scoring(self, groups: Iterable[RunningGroup]) -> None:
        """Notes that groups are being scored."""
        self._scored |= {id(group): group for group in groups}

    def end_scoring(self, groups: Iterable[RunningGroup]) -> None:
        """Notes that groups are no longer being scored."""
        for group in groups:
            self._scored.pop(id(group), None)

    def add_scored(self, finished: Sequence[RunningGroup], groups: Sequence[Group], seconds: float) -> None:
        """See `RolloutScheduler.add_scored`."""
        self.end_scoring(finished)
        super().add_scored(finished, groups, seconds)

    def take_batch(self, needed: int, version: int) -> list[Group]:
        """See `RolloutScheduler.take_batch`; groups in progress count as started for the batch after it."""
        batch = super().take_batch(needed, version)
        self._rounds = len(self.running) + self.num_ready
        return batch

    @property
    def _rounds_are_over(self) -> bool:
        return self._rounds >= self.sampler.rules.max_rounds * self.groups_per_batch

    def _room(self, needed: int) -> int:
        return self.groups_per_batch

    def _count_started(self, count: int) -> None:
        self._rounds += count

    def _requests(self, limit: int) -> list[GenerationRequest]:
        return self.sampler.requests(self.running, limit, self._lacking)

    def _lacking(self, group: RunningGroup) -> list[int]:
        """Returns the numbers of the samples that can continue and are not in the engine."""
        if id(group) in self._known and id(group) not in self._unsettled:
            return []
        return [index for index in group.unfinished() if (id(group), index) not in self._numbers]

    def _keep(self, sampled: SampledPass) -> list[tuple[Rollout, Rollout]]:
        before_and_after = super()._keep(sampled)
        self._ask()
        return before_and_after

    def _evictable(self) -> Sequence[RunningGroup]:
        return [group for group in self.running if id(group) not in self._scored]

    def _call(self, entered: dict[int, GenerationRequest], steps: int) -> dict[int, Streamed] | None:
        """Returns new tokens by number of their request; None if the engine dies."""
        given_up, self._given_up = self._given_up, []
        if not (self.in_engine or given_up):
            return {}
        call = StreamCall(entered, given_up, steps, self.context)
        return self.sampler.engine.stream_once(call, self.sampler.sampling)

    def _enter(self, group: RunningGroup, index: int) -> int:
        self._next_number += 1
        self.in_engine[self._next_number] = group, index
        self._numbers[id(group), index] = self._next_number
        return self._next_number

    def _leave(self, number: int) -> None:
        group, index = self.in_engine.pop(number)
        del self._numbers[id(group), index]

    def _give_up(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._leave(number)
        self._given_up += numbers

    def _drop_others(self) -> None:
        """Forgets all groups that are no longer running."""
        kept = {id(group) for group in self.running}
        gone = [group for name, group in self._known.items() if name not in kept]
        gone_places = [(id(group), index) for group in gone for index in range(len(group.rollouts))]
        self._give_up(sorted(self._numbers[each] for each in gone_places if each in self._numbers))
        for name, index in [each for each in self._waiting if each[0] not in kept]:
            group, _, future = self._waiting.pop((name, index))
            future.cancel()
            self.sampler.journal.take(group.rollouts[index])

    def _ask(self) -> None:
        """Requests the environment's replies to all turns that have ended."""
        if (talk := self.sampler.conversations) is None:
            return
        talk.journal.begin()
        for group in self.running:
            for index, rollout in enumerate(group.rollouts):
                if rollout.awaits_reply and (id(group), index) not in self._waiting:
                    future = talk.ask(group.item.problem, rollout)
                    self._waiting[id(group), index] = group, index, future
                    future.add_done_callback(lambda _: self.on_reply())

    def _replies(self) -> set[Place]:
        return {place for place, (*_, future) in self._waiting.items() if future.done()}

    def _take_reply(self, group: RunningGroup, index: int) -> None:
        talk, rollout = self.sampler.conversations, group.rollouts[index]
        assert talk is not None
        reply = self._waiting[id(group), index][2].result()
        del self._waiting[id(group), index]
        talk.journal.take(rollout)
        group.rollouts[index] = talk.answered(rollout, reply)
