"""Generates in a separate thread, while training continues.

    generating thread                              trainer's thread, between two updates
    -----------------                              -------------------------------------
    wait: room for a pass, or unfinished work      next_groups: wait for a batch, serving weights meanwhile
    wait: weights as new as the trainer's   <----  serve: push the weights that the next pass needs
                                                   prove that they arrived, during the pass
    one pass, score, add_scored             ---->  take the batch, serve again (there is room now), train
                                                   exclusive_engine: wait for the end of the pass (validation)

A pass of a stream is some decoding steps. A further thread scores during the next ones, and each visit of the
trainer waits for the end of the present steps and pushes the newest weights: the engine keeps responses.

`AsyncProtocol` has the rules, this module the threads. The scheduler's lock guards all state; a condition on
it is notified whenever anything changes. The engine is used by the generating thread during a pass and by
the trainer's thread otherwise, never by both: weights are handed over in the trainer's thread, where
collectives of several ranks are legal and the weights stand still.

A wait always ends. The generating thread waits only (1) for room, and then a full batch is ready or on its
way: `num_startable` at the trainer's own clock is positive whenever the next batch needs groups and none
runs; (2) for weights, which the trainer pushes at its next visit and while it waits. The trainer waits only
for a batch, or for the end of a pass.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from bapo_lightning.data.rollouts.async_protocol import AsyncProtocol
from bapo_lightning.data.rollouts.collector import Collector, TrainerState
from bapo_lightning.data.rollouts.group_state import ArrayStore
from bapo_lightning.data.rollouts.running_group import STEPS, RunningGroup, SampledPass
from bapo_lightning.data.rollouts.schedule import TrainerEvent
from bapo_lightning.data.rollouts.stream_scheduler import StreamScheduler
from bapo_lightning.rollout.engine import GenerationRequest
from bapo_lightning.system.orphans import in_background
from bapo_lightning.system.phases import phase
from bapo_lightning.system.printable import say
from bapo_lightning.types import Group

STOP_SECONDS = 10  # that the end of a run waits for a pass, before it closes the engine under the pass
MOST_STEPS = 64  # of a pass of a stream
PASS_SHARE = 1 / 16  # of the time between two visits of the trainer
Scored = tuple[list[Group], float]  # and seconds


@dataclass
class NumSteps:
    """Decoding steps of the next pass of a stream. The overhead of a pass is the same for few steps and for
    many; but the trainer waits for its end at visits, and when a batch becomes complete during it.
    """

    _visited: float | None = None
    _between: float = 0.0  # seconds between the last two visits
    _step: float = 0.0  # seconds of a step in the last pass

    def visit(self, now: float) -> None:
        """Notes a visit of the trainer at `now` seconds."""
        if self._visited is not None:
            self._between = now - self._visited
        self._visited = now

    def note_pass(self, sampled: SampledPass) -> None:
        """Notes that a pass has ended."""
        self._step = sampled.seconds / sampled.steps

    def next(self, now: float) -> int:
        """Returns `STEPS` to `MOST_STEPS` for a pass that begins at `now` seconds."""
        if self._visited is None or not self._step:
            return STEPS
        wanted = PASS_SHARE * max(self._between, now - self._visited) / self._step
        return int(min(max(wanted, STEPS), MOST_STEPS))


@dataclass(eq=False)
class AsyncCollector(Collector):
    """Keeps the engine busy as far as the age bound allows, and restarts it after a death."""

    needed: int  # groups in a batch
    _thread: threading.Thread | None = field(default=None, init=False)
    _failure: BaseException | None = field(default=None, init=False)
    _pass_began: float = field(default=0.0, init=False)  # time at which the last pass began
    _stopping: bool = field(default=False, init=False)
    _steps: NumSteps = field(default_factory=NumSteps, init=False)
    _scoring: deque[tuple[Sequence[RunningGroup], Future[Scored]]] = field(default_factory=deque, init=False)

    def __post_init__(self) -> None:
        self._changed = threading.Condition(self.scheduler.lock)
        self._protocol = AsyncProtocol(self.scheduler, self.refresh_engine, self.needed)
        self._stream = self.scheduler if isinstance(self.scheduler, StreamScheduler) else None
        if self._stream is not None:
            self._scorer = ThreadPoolExecutor(1, thread_name_prefix="scoring")
            self._stream.on_reply = self._notify

    def next_groups(self, needed: int, state: TrainerState) -> list[Group]:
        """Waits for a batch, serving weights meanwhile."""

        def batch_is_there() -> bool:
            is_there = self._protocol.has_batch(needed)
            self._changed.notify_all()
            return is_there

        with self._changed:
            self._visit(state)
            batch_is_there()
        self._prove_weights()
        with self._changed:
            with phase("waiting for samples"):
                self._wait_until(batch_is_there, "training", "a rollout batch")
            batch = self._protocol.take(needed)
            self._changed.notify_all()
        self._prove_weights()
        return batch

    def between_updates(self, state: TrainerState) -> None:
        """Notes the trainer's progress, which may make room, and hands over weights for the next pass."""
        with self._changed:
            self._visit(state)
            self._protocol.serve_weights()
            self._changed.notify_all()
        self._prove_weights()

    def note(self, event: TrainerEvent) -> None:
        """Records the event."""
        self.scheduler.note(event)

    @contextmanager
    def exclusive_engine(self, state: TrainerState) -> Iterator[None]:
        """Waits for the end of the pass; no other begins inside the context."""
        with self._changed:
            self._visit(state)
            self._protocol.held = True
            wanted = "the end of a pass, to use the engine itself"
            self._wait_until(self._is_at_rest, "training", wanted)
            self.note("validation")
        try:
            yield
        finally:
            with self._changed:
                self._protocol.held = False
                self._changed.notify_all()

    def close(self) -> bool:
        """Lets the present pass end, if it ends soon."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._stream is not None:
            self._scorer.shutdown(wait=False, cancel_futures=True)
        if self._thread is None:
            return True
        self._thread.join(STOP_SECONDS)
        return not self._thread.is_alive()

    def load_state_dict(self, state: dict[str, Any], store: ArrayStore) -> None:
        """Notes that the engine has none of the running responses."""
        if self._stream is not None:
            with self._changed:
                self.scheduler.note("resumed")

    def _is_at_rest(self) -> bool:
        """True if neither the engine nor the reward is at work."""
        return not self._protocol.in_pass and not self._scoring

    def _prove_weights(self) -> None:
        """Ends a hand-over during generation; only after this are the engine's new samples used."""
        self.sampler.engine.prove()

    def _visit(self, state: TrainerState) -> None:
        self._protocol.visit(state)
        if self._thread is None and not self._stopping:
            self._thread = in_background("rollouts", self._generate_until_stopped, self._fail)
        self._raise_failure()
        self._changed.notify_all()
        if self._stream is not None:
            if self.sampler.conversations is None:  # else a reply would wait longer
                self._steps.visit(time.perf_counter())
            engine, protocol = self.sampler.engine, self._protocol
            wanted = "the end of some decoding steps"
            self._wait_until(
                lambda: not protocol.in_pass or engine.version == state.version, "training", wanted
            )

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _generate_until_stopped(self) -> None:
        while (requests := self._next_pass()) is not None:
            self._run(requests)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            if not self._stopping:
                self._failure = error
            self._changed.notify_all()

    def _next_pass(self) -> list[GenerationRequest] | None:
        with self._changed:
            start = time.perf_counter()
            wanted = "room, or weights from the trainer"
            self._wait_until(lambda: self._stopping or self._may_begin(), "generation", wanted)
            self.scheduler.statistics.count_wait(time.perf_counter() - start, self._sampled_meanwhile())
            if self._stopping:
                return None
            self._pass_began = time.perf_counter()
            if self._stream is not None:
                self._stream.take_replies()
            return self._protocol.begin()

    def _sampled_meanwhile(self) -> float:
        """Seconds of a wait for weights in which the engine continued a stream."""
        seconds = self.sampler.engine.take_answer_seconds()
        return seconds if self._stream is not None and self._stream.in_engine else 0.0

    def _may_begin(self) -> bool:
        """Returns whether a pass may begin; notifies a waiting trainer if weights are missing."""
        while self._scoring and self._scoring[0][1].done():
            finished, future = self._scoring.popleft()
            self._protocol.scored(finished, *future.result())
            self._changed.notify_all()
        waited = self._protocol.wants_weights
        may_begin = self._protocol.may_begin()
        if self._protocol.wants_weights and not waited:
            self._changed.notify_all()
        return may_begin

    def _run(self, requests: list[GenerationRequest]) -> None:
        sampled = self.scheduler.sample(requests, once=True, steps=self._steps.next(time.perf_counter()))
        if not self._stopping:
            self.sampler.engine.restart()  # within the pass: after it, the trainer may use the engine
        with self._changed:
            finished, version = self._protocol.sampled(sampled)
            if self._stream is not None:
                self._steps.note_pass(sampled)
                if finished and not self._stopping:
                    future = self._scorer.submit(self._score, finished, version)
                    self._scoring.append((finished, future))
                    future.add_done_callback(lambda _: self._notify())
                self._changed.notify_all()
                return
        scored = self._score(finished, version)
        with self._changed:
            self._protocol.scored(finished, *scored)
            self._changed.notify_all()

    def _score(self, finished: Sequence[RunningGroup], version: int) -> Scored:
        start = time.perf_counter()
        return self.sampler.score(finished, version), time.perf_counter() - start

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _wait_until(self, holds: Callable[[], bool], who: str, what: str) -> None:
        start, patience = time.perf_counter(), self.scheduler.regime.wait_warning_seconds
        num_messages = 1
        while not holds():
            self._changed.wait(patience / 4)
            self._raise_failure()
            waited = time.perf_counter() - start
            if waited > num_messages * patience:
                num_messages += 1
                message = f"{who} has waited {waited:.0f} s for {what}: {self._situation()}"
                say(message, sys.stderr)

    def _situation(self) -> str:
        ago = time.perf_counter() - self._pass_began
        doing = f"a pass began {ago:.0f} s ago" if self._protocol.in_pass else "the engine is idle"
        return (
            f"{self.scheduler.num_ready} of {self.needed} groups are ready, "
            f"{len(self.scheduler.running)} are in progress, {doing} (engine at policy version "
            f"{self.sampler.engine.version}, trainer at {self._protocol.trainer.version})"
        )
