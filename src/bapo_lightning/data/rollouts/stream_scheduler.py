"""The scheduler of a stream: responses stay in the engine from call to call, conversations wait for replies,
and groups are scored during the next calls. `InFlight` tracks where each of them is.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bapo_lightning.data.rollouts.in_flight import InFlight
from bapo_lightning.data.rollouts.running_group import STEPS, RunningGroup, SampledPass, place
from bapo_lightning.data.rollouts.schedule import name_of
from bapo_lightning.data.rollouts.scheduler import RolloutScheduler, StartOrder
from bapo_lightning.rollout.engine import GenerationRequest, StreamCall, Streamed
from bapo_lightning.types import Group, Rollout


@dataclass(eq=False)
class StreamScheduler(RolloutScheduler):
    """Requests only samples that the engine does not have; only age bounds the number in flight."""

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.regime.stream is not None
        self.context = self.regime.stream
        self.in_flight = InFlight(self.sampler.conversations)
        # The oldest ready group enters first, since others may have overtaken it.
        self._order = StartOrder(self.regime.window or sys.maxsize)

    @property
    def finished(self) -> list[RunningGroup]:
        """Complete groups, to be scored."""
        return [group for group in self._evictable() if self.in_flight.is_complete(group)]

    def has_work(self, clock: int, needed: int) -> bool:
        """Whether a call with weights of this clock would do anything."""
        goes_on = any(not self.in_flight.rests(group) for group in self.running)
        return goes_on or bool(self.in_flight.replies()) or self.num_startable(clock, needed) > 0

    def take_replies(self, recorded: Sequence[Any] | None = None) -> None:
        """Continues the rollouts whose replies have come, or waits for the replies of a `recorded` row."""
        there = self.in_flight.replies()
        if not there and not recorded:
            return
        wanted = {(name, index) for name, numbers in recorded or () for index in numbers}
        taken: list[tuple[RunningGroup, list[int]]] = []
        for group in self.running:
            name = name_of(group)
            numbers = [
                index
                for index in self.in_flight.waiting(group)
                if ((id(group), index) in there if recorded is None else (name, index) in wanted)
            ]
            if numbers:
                taken.append((group, numbers))
        if taken:
            self.note("replies", groups=[[name_of(group), numbers] for group, numbers in taken])
            for group, numbers in taken:
                self.in_flight.take_replies(group, numbers)

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
        start, in_flight, running = time.perf_counter(), self.in_flight, self.running
        in_flight.drop_others(running)
        entered = {in_flight.enter(running[request.group], request.index): request for request in requests}
        in_flight.settle(running)
        given_up, held = in_flight.take_given_up(), in_flight.sampled
        made = self._stream(StreamCall(entered, given_up, steps, self.context)) if held or given_up else {}
        numbers = {id(group): number for number, group in enumerate(running)}
        sampled = held if made is None else made
        places = [place(numbers[id(held[number][0])], held[number][1]) for number in sampled]
        continued: dict[int, Rollout] = {}
        if made is None:
            in_flight.lose_engine()
        else:
            for row, (number, each) in enumerate(made.items()):
                group, index = held[number]
                rollout = group.rollouts[index]
                for segment in each.segments:
                    finish = each.finish if segment is each.segments[-1] else None
                    rollout = rollout.extended(segment, finish, self.sampler.max_new_tokens)
                continued[row] = rollout
                if each.finish is not None:
                    in_flight.leave(number)
        return SampledPass(places, continued, time.perf_counter() - start, steps=steps)

    def forget(self) -> None:
        """Lets the engine drop all its requests at once, so that a probe of new weights overlaps with none
        of them.
        """
        self.in_flight.lose_engine()
        if given_up := self.in_flight.take_given_up():
            self._stream(StreamCall({}, given_up, 0, self.context))

    def postprocess(self, sampled: SampledPass) -> list[RunningGroup]:
        """See `RolloutScheduler.postprocess`; complete groups are scored during the next passes."""
        finished = super().postprocess(sampled)
        self.in_flight.begin_scoring(finished)
        return finished

    def add_scored(self, finished: Sequence[RunningGroup], groups: Sequence[Group], seconds: float) -> None:
        """See `RolloutScheduler.add_scored`."""
        self.in_flight.end_scoring(finished)
        super().add_scored(finished, groups, seconds)

    def take_batch(self, needed: int, version: int) -> list[Group]:
        """See `RolloutScheduler.take_batch`; groups in progress count as started for the batch after it."""
        batch = super().take_batch(needed, version)
        self._rounds = len(self.running) + self.num_ready
        return batch

    def _stream(self, call: StreamCall) -> dict[int, Streamed] | None:
        return self.sampler.engine.stream_once(call, self.sampler.sampling)

    @property
    def _rounds_are_over(self) -> bool:
        return self._rounds >= self.sampler.rules.max_rounds * self.groups_per_batch

    def _room(self, needed: int) -> int:
        return self.groups_per_batch

    def _count_started(self, count: int) -> None:
        self._rounds += count

    def _requests(self, limit: int) -> list[GenerationRequest]:
        return self.sampler.requests(self.running, limit, self.in_flight.lacking)

    def _keep(self, sampled: SampledPass) -> list[tuple[Rollout, Rollout]]:
        before_and_after = super()._keep(sampled)
        self.in_flight.ask(self.running)
        return before_and_after

    def _evictable(self) -> Sequence[RunningGroup]:
        return [group for group in self.running if not self.in_flight.is_scored(group)]
