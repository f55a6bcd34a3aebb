"""Generates in a thread of its own, while training goes on.

    generating thread                              trainer's thread, between two updates
    -----------------                              -------------------------------------
    wait: room for a pass, or unfinished work      next_groups: wait for a batch, serving weights meanwhile
    wait: weights as new as the trainer's   <----  serve: push the weights that the next pass needs
    one pass, score, add_scored             ---->  take the batch, serve again (there is room now), train
                                                   exclusive_engine: wait for the end of the pass (validation)

`AsyncProtocol` has the rules; here are the threads. The scheduler's lock guards all state; one condition on
it is notified whenever anything changes. The engine is used by the generating thread during a pass and by
the trainer's thread otherwise, never by both: weights are handed over in the trainer's thread, where
collectives of several ranks are legal and the weights stand still.

A wait always ends. The generating thread waits only (1) for room, and then a full batch is ready or on its
way: `num_startable` at the trainer's own clock is positive whenever the next batch lacks groups and none
runs; (2) for weights, which the trainer pushes at its next visit and while it waits. The trainer waits only
for a batch, or for the end of a pass.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from bapo_lightning.data.rollouts.async_protocol import AsyncProtocol
from bapo_lightning.data.rollouts.collector import Collector, TrainerState
from bapo_lightning.data.rollouts.rounds import Rounds
from bapo_lightning.data.rollouts.sampled_pass import SampledPass
from bapo_lightning.data.rollouts.schedule import TrainerEvent
from bapo_lightning.phases import phase
from bapo_lightning.rollout.engine import GenerationRequest
from bapo_lightning.types import Group

STOP_SECONDS = 10  # the end of a run waits so long for a pass; then the engine is closed under it


@dataclass(eq=False)
class AsyncCollector(Collector):
    """Keeps the engine busy as far as the age bound allows; the module's docstring shows the two threads.

    An engine that dies is restarted, and the samples that it had not finished go on under newer weights.
    """

    needed: int  # groups in a batch
    wait_warning_seconds: float  # a wait says after each such time what it waits for
    _thread: threading.Thread | None = field(default=None, init=False)
    _failure: BaseException | None = field(default=None, init=False)
    _pass_began: float = field(default=0.0, init=False)  # of the last one
    _stopping: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._changed = threading.Condition(self.scheduler.lock)
        self._protocol = AsyncProtocol(self.scheduler, self.refresh_engine, self.needed)

    def next_groups(self, needed: int, state: TrainerState) -> list[Group]:
        """Waits for a batch, serving weights meanwhile."""
        with self._changed:
            self._visit(state)

            def batch_is_there() -> bool:
                is_there = self._protocol.has_batch(needed)
                self._changed.notify_all()
                return is_there

            with phase("waiting for samples"):
                self._wait_until(batch_is_there, "training", "a rollout batch")
            batch = self._protocol.take(needed)
            self._changed.notify_all()
            return batch

    def between_updates(self, state: TrainerState) -> None:
        """Notes the trainer's progress, which may make room, and hands over weights for the next pass."""
        with self._changed:
            self._visit(state)
            self._protocol.serve_weights()
            self._changed.notify_all()

    def note(self, event: TrainerEvent) -> None:
        """Records the event."""
        self.scheduler.note(event)

    @contextmanager
    def exclusive_engine(self, state: TrainerState) -> Iterator[None]:
        """Waits for the end of the pass; none begins inside the context."""
        with self._changed:
            self._visit(state)
            self._protocol.held = True
            self._wait_until(
                lambda: not self._protocol.in_pass, "training", "the end of a pass, to use the engine itself"
            )
            self.note("validation")
        try:
            yield
        finally:
            with self._changed:
                self._protocol.held = False
                self._changed.notify_all()

    def close(self) -> bool:
        """Lets the present pass end, if it does so soon."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is None:
            return True
        self._thread.join(STOP_SECONDS)
        return not self._thread.is_alive()

    def _visit(self, state: TrainerState) -> None:
        """Notes the trainer's progress. Raises the error that ended the generating thread."""
        self._protocol.visit(state)
        if self._thread is None and not self._stopping:
            self._thread = threading.Thread(target=self._generate_until_stopped, name="rollouts", daemon=True)
            self._thread.start()
        self._check()
        self._changed.notify_all()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _generate_until_stopped(self) -> None:
        try:
            while (requests := self._next_pass()) is not None:
                self._run(requests)
        except BaseException as error:
            with self._changed:
                if not self._stopping:
                    self._failure = error
                self._changed.notify_all()

    def _next_pass(self) -> list[GenerationRequest] | None:
        """Waits until a pass may begin and returns its requests; None at the end of the run."""
        with self._changed:
            start = time.perf_counter()
            self._wait_until(
                lambda: self._stopping or self._may_begin(), "generation", "room, or weights from the trainer"
            )
            self.scheduler.statistics.engine_idle_seconds += time.perf_counter() - start
            if self._stopping:
                return None
            self._pass_began = time.perf_counter()
            return self._protocol.begin()

    def _may_begin(self) -> bool:
        """Whether a pass may begin; tells the trainer, which may wait itself, that weights lack."""
        asked = self._protocol.wants_weights
        may_begin = self._protocol.may_begin()
        if self._protocol.wants_weights and not asked:
            self._changed.notify_all()
        return may_begin

    def _run(self, requests: list[GenerationRequest]) -> None:
        engine = self.sampler.engine
        start = time.perf_counter()
        rounds = Rounds()
        continued = self.sampler.continued(requests, self.scheduler.running, once=True, rounds=rounds)
        sampled = time.perf_counter()
        with self._changed:
            finished, version = self._protocol.sampled(
                SampledPass(requests, continued, sampled - start, rounds.taken)
            )
        groups = self.sampler.score(finished, version)
        if not self._stopping:
            engine.restart()
        with self._changed:
            self._protocol.scored(finished, groups, time.perf_counter() - sampled)
            self._changed.notify_all()

    def _wait_until(self, holds: Callable[[], bool], who: str, what: str) -> None:
        """Waits until `holds`; says so when it takes long. Raises the generating thread's error."""
        start = time.perf_counter()
        num_messages = 1
        while not holds():
            self._changed.wait(self.wait_warning_seconds / 4)
            self._check()
            waited = time.perf_counter() - start
            if waited > num_messages * self.wait_warning_seconds:
                num_messages += 1
                print(
                    f"{who} has waited {waited:.0f} s for {what}: {self._situation()}",
                    file=sys.stderr,
                    flush=True,
                )

    def _situation(self) -> str:
        scheduler, versions = self.scheduler, (self.sampler.engine.version, self._protocol.trainer.version)
        doing = (
            f"a pass began {time.perf_counter() - self._pass_began:.0f} s ago"
            if self._protocol.in_pass
            else "the engine is idle"
        )
        return (
            f"{scheduler.num_ready} of {self.needed} groups are ready, {len(scheduler.running)} are on their "
            f"way, {doing} (engine at policy version {versions[0]}, trainer at {versions[1]})"
        )
