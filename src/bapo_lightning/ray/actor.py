"""The process of one engine of a fleet."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bapo_lightning.errors import BapoLightningError, EngineError
from bapo_lightning.ranks.channel import Outcome
from bapo_lightning.ray.versions import versions
from bapo_lightning.ray.weights import StoredWeights
from bapo_lightning.rollout.child.process import inherited
from bapo_lightning.rollout.engine import (
    MERGED,
    GenerationRequest,
    RolloutEngine,
    SamplingParams,
    Verifiable,
    Wanted,
)


class EngineActor:
    """Holds one engine. Every method returns an Outcome, so that an error of the engine is told from the
    death of its process.
    """

    _engine: RolloutEngine

    def versions(self) -> Outcome:
        """The versions of this node's packages, and the id of this process."""
        return outcome(lambda: (versions(), os.getpid()))

    def make(self, path: Sequence[str], cpu_threads: int | None, recipe: bytes) -> Outcome:
        """Makes the engine; returns the form in which it takes all weights.

        Args:
            path: the trainer's module path; what this node lacks of it is searched last.
            cpu_threads: torch's threads; None: Ray gives as many as the actor has CPUs.
            recipe: pickled function without arguments that returns the engine.
        """

        def work() -> Wanted:
            for name in os.environ.keys() - inherited().keys():  # of the trainer, if it started the cluster
                del os.environ[name]
            sys.path += [folder for folder in path if folder not in sys.path]
            if cpu_threads is not None:
                torch.set_num_threads(cpu_threads)
            self._engine = pickle.loads(recipe)()
            return getattr(self._engine, "wanted", MERGED)

        return outcome(work)

    def weight_digests(self, seed: int) -> Outcome:
        """Digests of the weights that the engine holds; none if it cannot tell."""
        return outcome(
            lambda: self._engine.weight_digests(seed)[0] if isinstance(self._engine, Verifiable) else {}
        )

    def load_weights(self, weights: StoredWeights, version: int) -> Outcome:
        """Loads all weights from the object store."""
        return outcome(lambda: self._engine.load_weights(weights, version))

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams, version: int
    ) -> Outcome:
        """Samples with the weights of `version`, and with no others."""

        def work() -> Any:
            if self._engine.version != version:
                raise EngineError(
                    f"an engine of the fleet was asked for samples of version {version}, and holds "
                    f"{self._engine.version}"
                )
            return self._engine.generate(requests, sampling)

        return outcome(work)

    def sleep(self) -> Outcome:
        """Gives device memory back; returns the version that is still held."""

        def work() -> int:
            self._engine.sleep()
            return self._engine.version

        return outcome(work)


def outcome(work: Callable[[], Any]) -> Outcome:
    """The value or the error of `work`. Errors that are not ours are replaced: the trainer may not know
    them, or they may not be picklable.
    """
    try:
        return Outcome(work())
    except BapoLightningError as error:
        return Outcome(error=error)
    except Exception as error:
        traceback.print_exc()
        reason = f"an engine of the fleet failed in its process ({type(error).__name__}: {error})"
        return Outcome(error=EngineError(reason))
