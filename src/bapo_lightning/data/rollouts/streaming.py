"""Makes passes of a stream: some decoding steps of all responses in flight."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from bapo_lightning.data.rollouts.running_group import STEPS, SampledPass, place
from bapo_lightning.data.rollouts.stream_scheduler import StreamScheduler
from bapo_lightning.rollout.engine import GenerationRequest, StreamCall
from bapo_lightning.types import Rollout

MOST_STEPS = 64  # of a call
CALL_SHARE = 1 / 16  # of the time between two visits of the trainer


@dataclass
class CallLength:
    """Decoding steps of the next call. The overhead of a call is the same for few steps and for many; but
    the trainer waits for the end of a call at its visits, and when a batch becomes complete during a call.
    """

    _visited: float | None = None
    _between: float = 0.0  # seconds between the last two visits
    _step: float = 0.0  # seconds of a step in the last call

    def visit(self, now: float) -> None:
        """Notes a visit of the trainer at `now` seconds."""
        if self._visited is not None:
            self._between = now - self._visited
        self._visited = now

    def called(self, made: SampledPass) -> None:
        """Notes that a call has ended."""
        self._step = made.seconds / made.steps

    def steps(self, now: float) -> int:
        """Returns `STEPS` to `MOST_STEPS` for a call that begins at `now` seconds."""
        if self._visited is None or not self._step:
            return STEPS
        wanted = CALL_SHARE * max(self._between, now - self._visited) / self._step
        return int(min(max(wanted, STEPS), MOST_STEPS))


@dataclass(frozen=True)
class Streaming:
    """Samples with an engine that keeps its requests from call to call."""

    scheduler: StreamScheduler

    def forget(self) -> None:
        """Lets the engine drop all its requests at once, so that a probe of new weights overlaps with none
        of them.
        """
        in_flight, sampler = self.scheduler.in_flight, self.scheduler.sampler
        in_flight.lose_engine()
        if given_up := in_flight.take_given_up():
            sampler.engine.stream_once(StreamCall({}, given_up, 0, self.scheduler.context), sampler.sampling)

    def sample(self, requests: Sequence[GenerationRequest], steps: int = STEPS) -> SampledPass:
        """Makes `steps` steps, in which the `requests` of `RolloutScheduler.schedule` begin. If the engine
        dies, its requests are forgotten.
        """
        start = time.perf_counter()
        sampler, in_flight = self.scheduler.sampler, self.scheduler.in_flight
        running = self.scheduler.running
        in_flight.drop_others(running)
        entered = {in_flight.enter(running[request.group], request.index): request for request in requests}
        in_flight.settle(running)
        given_up, held = in_flight.take_given_up(), in_flight.sampled
        call = StreamCall(entered, given_up, steps, self.scheduler.context)
        made = sampler.engine.stream_once(call, sampler.sampling) if held or given_up else {}
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
                    rollout = rollout.extended(segment, finish, sampler.max_new_tokens)
                continued[row] = rollout
                if each.finish is not None:
                    in_flight.leave(number)
        return SampledPass(places, continued, time.perf_counter() - start, steps=steps)
