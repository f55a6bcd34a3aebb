"""Keeps a run going when its engine dies or hangs: restart, weights again, and only what was interrupted is
sampled again. On a CPU a repeated request gives what the dead engine would have given; on a GPU, which rounds
differently in another batch, another sample of the same distribution.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from bapo_lightning.errors import EngineError
from bapo_lightning.phases import phase
from bapo_lightning.rollout.engine import (
    EngineDied,
    Generation,
    GenerationRequest,
    RolloutEngine,
    SamplingParams,
    SeveralEngines,
    StreamCall,
    Streamed,
    StreamingEngine,
)
from bapo_lightning.rollout.weight_sync import Proof, ScoringWeightSource, SyncReport, WeightSync


@dataclass(eq=False)
class RestartingEngine:
    """A `RolloutEngine` around another one that outlives the deaths of its process, up to a number in a run.
    Weights are loaded with a proof (`WeightSync`), and again after each restart.
    """

    engine: RolloutEngine
    weight_sync: WeightSync
    vocab_size: int  # of the tokenizer; the proof's prompts are drawn from it
    max_restarts: int  # an engine that dies more often has a cause that restarts do not cure
    sync_reports: list[SyncReport] = field(default_factory=list, init=False)  # until they are taken away
    _death: EngineError | None = field(default=None, init=False)  # until it is restarted
    _unproven: Proof | None = field(default=None, init=False)  # of the weights that were handed over last
    _loaded: tuple[ScoringWeightSource, int] | None = field(default=None, init=False)
    _answer_seconds: float = field(default=0.0, init=False)  # until they are taken away
    _num_restarts: int = field(default=0, init=False)
    _num_taken: int = field(default=0, init=False)

    @property
    def version(self) -> int:
        """Policy version of the weights held, or `UNSYNCED_VERSION`."""
        return self.engine.version

    def generate(self, requests: Sequence[GenerationRequest], sampling: SamplingParams) -> list[Generation]:
        """Samples all requests in order, across deaths. Raises EngineError without restarts left."""
        done: dict[int, Generation] = {}
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
        """Generations by number of their request; none when the engine dies: `restart` then.

        A caller that samples anew under newer weights must not keep what was finished before a death: keeping
        it would bias the batch towards short answers.
        """
        made = self._attempt(requests, sampling)
        return made if self._death is None else {}

    def stream_once(self, call: StreamCall, sampling: SamplingParams) -> dict[int, Streamed] | None:
        """What a call of the stream samples; None when the engine dies, and all its requests with it."""
        try:
            with phase("sampling"):
                return cast(StreamingEngine, self.engine).stream(call, sampling)
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
        """Loads weights and proves it, across deaths. Raises EngineError without restarts left."""
        self.hand_over(source, version)
        self.prove()

    @phase("syncing weights")
    def hand_over(self, source: ScoringWeightSource, version: int) -> None:
        """Loads weights, across deaths, so that the engine can sample again. The caller must `prove` before
        it uses what was sampled, or changes the weights of `source`. Raises EngineError without restarts.
        """
        self._loaded = source, version
        while True:
            try:
                self._unproven = self.weight_sync.load(source, self.engine, version, self.vocab_size)
            except EngineDied as death:
                self._death = death
                self.restart()
            else:
                self._answer_seconds += self._unproven.answer_seconds
                return

    def take_answer_seconds(self) -> float:
        """Time in which the engine sampled probes since the last call. A stream goes on beside them."""
        taken, self._answer_seconds = self._answer_seconds, 0.0
        return taken

    @phase("syncing weights")
    def prove(self) -> None:
        """Proves the weights that were handed over and are not proven yet, if any; needs no engine. Raises
        EngineError when it fails.
        """
        proof, self._unproven = self._unproven, None
        if proof is not None:
            self.sync_reports.append(self.weight_sync.prove(proof))

    def restart(self) -> None:
        """Starts a dead engine anew, without weights. Raises EngineError without restarts left."""
        while self._death is not None:
            if self._num_restarts >= self.max_restarts:
                raise EngineError(
                    f"the rollout engine died after {self._num_restarts} restarts ({self._death}); "
                    f"rollout.max_restarts={self.max_restarts} allows no more. Its log says why: look for "
                    "lack of memory first"
                ) from self._death
            self._num_restarts += 1
            print(
                f"rollout engine lost ({self._death}); restart {self._num_restarts} of at most "
                f"{self.max_restarts}",
                file=sys.stderr,
                flush=True,
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
        """Gives back memory and processes. Calling it twice is fine."""
        self.engine.close()

    def take_counts(self) -> dict[str, float]:
        """Metrics: restarts since the last call, and what several engines count."""
        fresh, self._num_taken = self._num_restarts - self._num_taken, self._num_restarts
        counted = self.engine.take_counts() if isinstance(self.engine, SeveralEngines) else {}
        return {"rollout/engine_restarts": fresh, **counted}
