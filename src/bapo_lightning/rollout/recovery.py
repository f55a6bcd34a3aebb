"""Keeps a run going when its engine's process dies or hangs: restart, weights again, and only what was
interrupted is sampled again.

The tokens of a request depend on its seed and the weights alone, so a repeated request gives what the dead
engine would have given.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bapo_lightning.errors import EngineError
from bapo_lightning.rollout.engine import (
    EngineDied,
    Generation,
    GenerationRequest,
    RolloutEngine,
    SamplingParams,
)
from bapo_lightning.rollout.weight_sync import ScoringWeightSource, SyncReport, WeightSync


class RestartingEngine:
    """A `RolloutEngine` around another one that outlives the deaths of its process, up to a number in a run.
    Weights are loaded with a proof (`WeightSync`), and again after each restart.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        weight_sync: WeightSync,
        vocab_size: int,
        max_restarts: int,
        num_engines: int = 1,
    ) -> None:
        """
        Args:
            engine: samples.
            weight_sync: loads the weights and proves that they arrived.
            vocab_size: of the tokenizer; the proof's prompts are drawn from it.
            max_restarts: an engine that dies more often has a cause that restarts do not cure.
            num_engines: engines behind `engine`, each proven by itself.
        """
        self._engine = engine
        self._weight_sync = weight_sync
        self._vocab_size = vocab_size
        self._max_restarts = max_restarts
        self._num_engines = num_engines
        self._death: EngineError | None = None  # until it is restarted
        self._loaded: tuple[ScoringWeightSource, int] | None = None
        self._num_restarts = self._num_taken = 0
        self.sync_reports: list[SyncReport] = []  # of all pushes, until they are taken away

    @property
    def version(self) -> int:
        """Policy version of the weights held, or `UNSYNCED_VERSION`."""
        return self._engine.version

    def generate(self, requests: Sequence[GenerationRequest], sampling: SamplingParams) -> list[Generation]:
        """Samples all requests under the same weights, in order, carried on after every death of the engine.

        Raises:
            EngineError: the restarts are used up.
        """
        done: dict[int, Generation] = {}
        while len(done) < len(requests):
            pending = [number for number in range(len(requests)) if number not in done]
            fresh = self.generate_once([requests[number] for number in pending], sampling)
            done |= {pending[number]: generation for number, generation in fresh.items()}
            if self._death is not None:
                self.restart()
                if self._loaded is not None:
                    self.load_weights(*self._loaded)
        return [done[number] for number in range(len(requests))]

    def generate_once(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams
    ) -> dict[int, Generation]:
        """Generations by number of their request, without those that a death cut off: `restart` then."""
        try:
            return dict(enumerate(self._engine.generate(requests, sampling))) if requests else {}
        except EngineDied as death:
            self._death = death
            return death.finished

    def load_weights(self, source: ScoringWeightSource, version: int) -> None:
        """Loads the weights of `source` as policy `version` and proves that they arrived, however often the
        engine dies meanwhile.

        Raises:
            EngineError: the proof failed, or the restarts are used up.
        """
        self._loaded = source, version
        while True:
            try:
                report = self._weight_sync.push(
                    source, self._engine, version, self._vocab_size, self._num_engines
                )
            except EngineDied as death:
                self._death = death
                self.restart()
            else:
                return self.sync_reports.append(report)

    def restart(self) -> None:
        """Starts the engine anew if it is dead, and again if it dies while it starts. It then has no weights.

        Raises:
            EngineError: the restarts are used up; names the last reason.
        """
        while self._death is not None:
            if self._num_restarts >= self._max_restarts:
                raise EngineError(
                    f"the rollout engine died after {self._num_restarts} restarts ({self._death}); "
                    f"rollout.max_restarts={self._max_restarts} allows no more. Its log says why: look for "
                    "lack of memory first"
                ) from self._death
            self._num_restarts += 1
            print(
                f"rollout engine lost ({self._death}); restart {self._num_restarts} of at most "
                f"{self._max_restarts}",
                file=sys.stderr,
                flush=True,
            )
            try:
                self._engine.restart()
                self._death = None
            except EngineError as error:
                self._death = error

    def sleep(self) -> None:
        """Gives device memory to the trainer; see `RolloutEngine.sleep`."""
        self._engine.sleep()

    def close(self) -> None:
        """Gives back memory and processes. Calling it twice is fine."""
        self._engine.close()

    def take_restarts(self) -> int:
        """Restarts since the last call."""
        fresh, self._num_taken = self._num_restarts - self._num_taken, self._num_restarts
        return fresh
