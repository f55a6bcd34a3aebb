"""Generates in a separate thread, some decoding steps at a time, while a second thread scores.

    generating thread                              trainer's thread, between two updates
    -----------------                              -------------------------------------
    add scored groups; take replies; begin         visit: wait for the end of the present steps,
    wait: weights as new as the trainer's   <----         push the newest weights
    some steps -> groups to be scored       ---->  take a batch as soon as it is there

Responses continue across new weights: the engine keeps them between two calls.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from bapo_lightning.data.rollouts.async_collector import AsyncCollector
from bapo_lightning.data.rollouts.async_protocol import AsyncProtocol
from bapo_lightning.data.rollouts.collector import TrainerState
from bapo_lightning.data.rollouts.group_state import ArrayStore
from bapo_lightning.data.rollouts.running_group import RunningGroup
from bapo_lightning.data.rollouts.stream_protocol import StreamProtocol
from bapo_lightning.data.rollouts.stream_scheduler import StreamScheduler
from bapo_lightning.data.rollouts.streaming import CallLength, Streaming
from bapo_lightning.rollout.engine import GenerationRequest
from bapo_lightning.types import Group

Scored = tuple[list[Group], float]


@dataclass(eq=False)
class StreamCollector(AsyncCollector):
    """Keeps every row of the engine busy as far as the age bound allows."""

    scheduler: StreamScheduler
    _scoring: deque[tuple[Sequence[RunningGroup], Future[Scored]]] = field(default_factory=deque, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._streaming, self._length = Streaming(self.scheduler), CallLength()
        self._scorer = ThreadPoolExecutor(1, thread_name_prefix="scoring")
        self.scheduler.in_flight.on_reply = self._notify

    def close(self) -> bool:
        """Lets the present steps end, if they end soon."""
        has_ended = super().close()
        self._scorer.shutdown(wait=False, cancel_futures=True)
        return has_ended

    def load_state_dict(self, state: dict[str, Any], store: ArrayStore) -> None:
        """Notes that the engine has none of the running responses."""
        with self._changed:
            self.scheduler.note("resumed")

    def _is_at_rest(self) -> bool:
        return super()._is_at_rest() and not self._scoring

    def _new_protocol(self) -> AsyncProtocol:
        return StreamProtocol(self.scheduler, self.refresh_engine, self.needed)

    def _visit(self, state: TrainerState) -> None:
        super()._visit(state)
        if self.sampler.conversations is None:  # else a reply would wait longer
            self._length.visit(time.perf_counter())
        engine, protocol = self.sampler.engine, self._protocol
        wanted = "the end of some decoding steps"
        self._wait_until(lambda: not protocol.in_pass or engine.version == state.version, "training", wanted)

    def _may_begin(self) -> bool:
        while self._scoring and self._scoring[0][1].done():
            finished, future = self._scoring.popleft()
            self._protocol.scored(finished, *future.result())
            self._changed.notify_all()
        return super()._may_begin()

    def _sampled_meanwhile(self) -> float:
        seconds = self.sampler.engine.take_answer_seconds()
        return seconds if self.scheduler.in_flight.sampled else 0.0

    def _run(self, requests: list[GenerationRequest]) -> None:
        made = self._streaming.sample(requests, self._length.steps(time.perf_counter()))
        self._length.called(made)
        if not self._stopping:
            self.sampler.engine.restart()  # within the pass: after it, the trainer may use the engine
        with self._changed:
            finished, version = self._protocol.sampled(made)
            if finished and not self._stopping:
                future = self._scorer.submit(self._score, finished, version)
                self._scoring.append((finished, future))
                future.add_done_callback(lambda _: self._notify())
            self._changed.notify_all()

    def _score(self, finished: Sequence[RunningGroup], version: int) -> Scored:
        start = time.perf_counter()
        return self.sampler.score(finished, version), time.perf_counter() - start

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()
