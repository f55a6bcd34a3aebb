"""One actor of a fleet, as the trainer sees it."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from bapo_lightning.errors import EngineError
from bapo_lightning.ranks.channel import Outcome
from bapo_lightning.ray.actor import EngineActor
from bapo_lightning.rollout.engine import MERGED, EngineDied, Wanted

REASONS = {
    ray.exceptions.ActorDiedError: "its process ended",
    ray.exceptions.ActorUnavailableError: "it cannot be reached",
    ray.exceptions.ActorUnschedulableError: "its node is gone",
}


class Stage(Enum):
    """How far an actor has come."""

    GREETING = auto()  # asked for its versions
    MAKING = auto()  # makes its engine
    MADE = auto()  # waits for weights
    PROVING = auto()  # loads the present weights and answers the probe
    READY = auto()


class Lost(Exception):
    """An actor's process or node is gone, or its engine's process is."""


@dataclass(eq=False)
class Member:
    """One actor."""

    number: int  # of its own in this run
    node: str  # id
    actor: Any  # handle
    stage: Stage = Stage.GREETING
    process: int | None = None  # id
    wanted: Wanted = MERGED  # form in which its engine takes weights
    held_back: bool = False  # until the next weights, since it answered the probe otherwise than the others
    call: Any = None  # reference of the call at work
    since: float = 0.0  # of that call [s]

    def ask(self, method: str, *arguments: Any) -> None:
        """Begins a call; those of one actor run one after another."""
        self.call = getattr(self.actor, method).remote(*arguments)
        self.since = time.monotonic()

    def outcome(self) -> Outcome:
        """Outcome of the call that has ended. Raises Lost when the actor did not live to its end."""
        reference, self.call = self.call, None
        try:
            outcome: Outcome = ray.get(reference)
        except ray.exceptions.RayTaskError as error:  # of our own code in the actor, such as an older one
            return Outcome(error=EngineError(f"{self}: {str(error).strip().splitlines()[-1]}"))
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
