"""One actor of a fleet: its process, and the actor as the trainer sees it."""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from bapo_lightning.extras.ray.versions import versions
from bapo_lightning.extras.ray.weights import StoredWeights
from bapo_lightning.rollout.child.process import inherited
from bapo_lightning.rollout.engine import (
    MERGED,
    EngineDied,
    GenerationRequest,
    RolloutEngine,
    SamplingParams,
    StreamCall,
    Wanted,
)
from bapo_lightning.system.errors import EngineError, Outcome, last_line, outcome_of

REASONS = {
    ray.exceptions.ActorDiedError: "its process ended",
    ray.exceptions.ActorUnavailableError: "it cannot be reached",
    ray.exceptions.ActorUnschedulableError: "its node is gone",
}


class EngineActor:
    """Holds one engine. Its methods return an Outcome, unlike a process that died."""

    _engine: RolloutEngine

    def versions(self) -> Outcome:
        """The versions of this node's packages, and the id of this process."""
        return self._outcome(lambda: (versions(), os.getpid()))

    def make(self, path: Sequence[str], cpu_threads: int | None, recipe: bytes) -> Outcome:
        """Makes the engine by the pickled `recipe`; returns the form in which it takes all weights. Entries
        of the trainer's module `path` that this node does not have are searched last; `cpu_threads` None: as
        many as the actor has CPUs.
        """

        def work() -> Wanted:
            for name in os.environ.keys() - inherited().keys():  # of the trainer, if it started the cluster
                del os.environ[name]
            sys.path += [folder for folder in path if folder not in sys.path]
            if cpu_threads is not None:
                torch.set_num_threads(cpu_threads)
            self._engine = pickle.loads(recipe)()
            return self._engine.wanted

        return self._outcome(work, traced=False)

    def weight_digests(self, seed: int) -> Outcome:
        """Digests of the weights that the engine holds; none if it cannot digest them."""
        return self._outcome(lambda: self._engine.weight_digests(seed).get(0, {}))

    def load_weights(self, weights: StoredWeights, version: int) -> Outcome:
        """Loads all weights from the object store."""
        return self._outcome(lambda: self._engine.load_weights(weights, version))

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams, version: int
    ) -> Outcome:
        """Samples with the weights of `version`, and with no others."""
        return self._outcome(lambda: self._of(version).generate(requests, sampling))

    def stream(self, call: StreamCall, sampling: SamplingParams, version: int) -> Outcome:
        """Some steps of a stream with the weights of `version`, and with no others."""
        return self._outcome(lambda: self._of(version).stream(call, sampling))

    def sleep(self) -> Outcome:
        """Gives device memory back; returns the version that is still held."""

        def work() -> int:
            self._engine.sleep()
            return self._engine.version

        return self._outcome(work)

    def _of(self, version: int) -> RolloutEngine:
        if self._engine.version != version:
            raise EngineError(
                f"an engine of the fleet was asked for samples of version {version}, and holds "
                f"{self._engine.version}"
            )
        return self._engine

    def _outcome(self, work: Callable[[], Any], traced: bool = True) -> Outcome:
        return outcome_of(work, "an engine of the fleet failed in its process ({})", traced=traced)


class Stage(Enum):
    """State of an actor."""

    GREETING = auto()  # its versions were requested
    MAKING = auto()  # makes its engine
    MADE = auto()  # waits for weights
    PROVING = auto()  # loads the present weights and answers the probe
    READY = auto()


class Lost(Exception):
    """An actor's process or node is gone, or its engine's process is."""


@dataclass(eq=False)
class Member:
    """One actor."""

    number: int  # unique in this run
    node: str  # id
    actor: Any  # handle
    stage: Stage = Stage.GREETING
    process: int | None = None  # id
    wanted: Wanted = MERGED  # form in which its engine takes weights
    held_back: bool = False  # until the next weights, since its answer to the probe differed from the others'
    call: Any = None  # reference of the running call
    since: float = 0.0  # of that call [s]

    def ask(self, method: str, *arguments: Any) -> None:
        """Starts a call; calls of one actor run one after another."""
        self.call = getattr(self.actor, method).remote(*arguments)
        self.since = time.monotonic()

    def outcome(self) -> Outcome:
        """Outcome of the call that has ended. Raises Lost if the actor did not survive it."""
        reference, self.call = self.call, None
        try:
            outcome: Outcome = ray.get(reference)
        except ray.exceptions.RayTaskError as error:  # from our own code in the actor, e.g. an older one
            return Outcome(error=EngineError(f"{self}: {last_line(error)}"))
        except ray.exceptions.RayError as error:
            raise Lost(REASONS.get(type(error)) or str(error).partition("\n")[0]) from None
        if isinstance(outcome.error, EngineDied):
            raise Lost(str(outcome.error))
        return outcome

    def end(self) -> None:
        """Ends the process."""
        with suppress(ray.exceptions.RayError):
            ray.kill(self.actor)

    def __str__(self) -> str:
        process = "" if self.process is None else f", process {self.process}"
        return f"engine {self.number} (node {self.node[:8]}{process})"


STARTING = (Stage.GREETING, Stage.MAKING)
_ACTOR = ray.remote(EngineActor)


def start(number: int, node: str, cpus: float, gpus: float) -> Member:
    """Starts an actor on a node and greets it; Ray neither restarts it nor repeats its calls."""
    actor = _ACTOR.options(
        num_cpus=cpus,
        num_gpus=gpus,
        max_restarts=0,
        max_task_retries=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
    ).remote()
    member = Member(number, node, actor)
    member.ask("versions")
    return member
