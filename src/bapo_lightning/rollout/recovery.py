"""Keeps a run alive when its engine dies or hangs: restarts it, loads weights again and repeats only the
interrupted requests. On a CPU a repeated request gives the same result as the dead engine would have; on a
GPU, which rounds differently in another batch, another sample of the same distribution.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from bapo_lightning.rollout.engine import (
    EngineDied,
    Generation,
    GenerationRequest,
    RolloutEngine,
    SamplingParams,
    StreamCall,
    Streamed,
)
from bapo_lightning.rollout.weight_sync import Proof, ScoringWeightSource, SyncReport, WeightSync
from bapo_lightning.system.errors import EngineError
from bapo_lightning.system.phases import phase
from bapo_lightning.system.printable import say


@dataclass(eq=False)
class RestartingEngine:
    """A `RolloutEngine` around another engine that survives a limited number of deaths of its process in a
    run. Weights are loaded with a proof (`WeightSync`), and again after each restart.

    Two threads share it: one samples, one hands over weights; one at a time uses the engine. The first that
    encounters a death restarts the engine, and the other then finds it alive.
    """

    engine: RolloutEngine
    weight_sync: WeightSync
    vocab_size: int  # of the tokenizer; the proof's prompts are drawn from it
    max_restarts: int  # more frequent deaths have a cause that restarts do not cure
    sync_reports: list[SyncReport] = field(default_factory=list, init=False)  # until they are taken
    _death: EngineError | None = field(default=None, init=False)  # until it is restarted
    _unproven: Proof | None = field(default=None, init=False)  # of the weights handed over last
    _loaded: tuple[ScoringWeightSource, int] | None = field(default=None, init=False)
    _answer_seconds: float = field(default=0.0, init=False)  # until they are taken
    _num_restarts: int = field(default=0, init=False)
    _num_taken: int = field(default=0, init=False)
    _closed: bool = field(default=False, init=False)
    _owner: threading.RLock = field(default_factory=threading.RLock, init=False)

    @property
    def version(self) -> int:
        """Policy version of the weights held, or `UNSYNCED_VERSION`."""
        return self.engine.version

    def generate(self, requests: Sequence[GenerationRequest], sampling: SamplingParams) -> list[Generation]:
        """Samples all requests in order, across deaths. Raises EngineError if no restarts are left."""
        done: dict[int, Generation] = {}
        with self._owner:
            while len(done) < len(requests):
                pending = [number for number in range(len(requests)) if number not in done]
                fresh = self._attempt([requests[number] for number in pending], sampling)
                done |= {pending[number]: generation for number, generation in fresh.items()}
                if self._death is not None:
                    self.restart()
                    if self._loaded is not None:
                        self.load_weights(*self._loaded)
        return [done[number] for number in range(len(requests))]

    def generate_once(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams
    ) -> dict[int, Generation]:
        """Returns generations by number of their request; none if the engine dies: call `restart` then.

        A caller that samples again under newer weights must not keep generations that finished before a
        death: keeping them would bias the batch towards short answers.
        """
        with self._owner:
            generations = self._attempt(requests, sampling)
            return generations if self._death is None else {}

    def stream_once(self, call: StreamCall, sampling: SamplingParams) -> dict[int, Streamed] | None:
        """Returns the samples of a call of the stream; None if the engine dies, and all requests with it."""
        with self._owner:
            try:
                with phase("sampling"):
                    return self.engine.stream(call, sampling)
            except EngineDied as death:
                self._death = death
                return None

    def _attempt(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams
    ) -> dict[int, Generation]:
        try:
            with phase("sampling", len(requests)):
                return dict(enumerate(self.engine.generate(requests, sampling))) if requests else {}
        except EngineDied as death:
            self._death = death
            return death.finished

    def load_weights(self, source: ScoringWeightSource, version: int) -> None:
        """Loads weights and proves them, across deaths. Raises EngineError if no restarts are left."""
        self.hand_over(source, version)
        self.prove()

    @phase("syncing weights")
    def hand_over(self, source: ScoringWeightSource, version: int) -> None:
        """Loads weights, across deaths, so that the engine can sample again. The caller must `prove` before
        it uses new samples or changes the weights of `source`. Raises EngineError if no restarts are left.
        """
        with self._owner:
            self._loaded = source, version
            while True:
                self.restart()
                try:
                    self._unproven = self.weight_sync.load(source, self.engine, version, self.vocab_size)
                except EngineDied as death:
                    self._death = death
                else:
                    self._answer_seconds += self._unproven.answer_seconds
                    return

    def take_answer_seconds(self) -> float:
        """Returns the time that probes took since the last call. A stream continues during them."""
        taken, self._answer_seconds = self._answer_seconds, 0.0
        return taken

    @phase("syncing weights")
    def prove(self) -> None:
        """Proves weights handed over since the last proof; needs no engine. Raises EngineError."""
        proof, self._unproven = self._unproven, None
        if proof is not None:
            self.sync_reports.append(self.weight_sync.prove(proof))

    def restart(self) -> None:
        """Restarts a dead engine, without weights. Raises EngineError if no restarts are left."""
        with self._owner:
            while self._death is not None:
                self._restart(self._death)

    def _restart(self, death: EngineError) -> None:
        if self._closed:
            raise EngineError("the rollout engine was closed") from death
        if self._num_restarts >= self.max_restarts:
            raise EngineError(
                f"the rollout engine died after {self._num_restarts} restarts ({death}); "
                f"rollout.max_restarts={self.max_restarts} allows no more. Its log says why: look for "
                "out-of-memory errors first"
            ) from death
        self._num_restarts += 1
        say(
            f"rollout engine lost ({death}); restart {self._num_restarts} of at most {self.max_restarts}",
            sys.stderr,
        )
        try:
            with phase("restarting the engine"):
                self.engine.restart()
            self._death = None
        except EngineError as error:
            self._death = error

    def sleep(self) -> None:
        """Gives device memory to the trainer; see `RolloutEngine.sleep`."""
        self.engine.sleep()

    def close(self) -> None:
        """Releases memory and processes, also during another call. May be called twice."""
        self._closed = True
        self.engine.close()

    def take_counts(self) -> dict[str, float]:
        """Returns metrics: restarts since the last call, and counts of several engines."""
        fresh, self._num_taken = self._num_restarts - self._num_taken, self._num_restarts
        return {"rollout/engine_restarts": fresh, **self.engine.take_counts()}
