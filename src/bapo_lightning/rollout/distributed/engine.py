"""The engines of several ranks as one, for the controller (rank 0).

    DistributedEngine.generate(requests)  --contiguous parts-->  LocalEngine.generate on each rank
      generations, in order  <-----------------------------------  its part

Each rank has an engine of its own, several ranks share one (tensor parallelism: they are given the same
part), or the controller alone has one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bapo_lightning.errors import EngineError
from bapo_lightning.ranks.channel import Channel, Outcome, values
from bapo_lightning.rollout.distributed.weights import CollectiveWeightSource
from bapo_lightning.rollout.engine import (
    UNSYNCED_VERSION,
    EngineDied,
    Generation,
    GenerationRequest,
    RolloutEngine,
    SamplingParams,
    WeightSource,
    check_synced,
)

Part = tuple[Sequence[GenerationRequest], SamplingParams]


class LocalEngine:
    """A rank's own engine, if it has one, under the commands of the controller."""

    def __init__(self, engine: RolloutEngine | None) -> None:
        self.engine = engine

    def handlers(self) -> dict[str, Callable[[Any], Any]]:
        """Handlers of the commands on the channel of the engines."""
        return {"generate": self.generate, "sleep": self.sleep, "restart": self.restart}

    def generate(self, part: Part) -> list[Generation]:
        """Samples this rank's part."""
        return self.engine.generate(*part) if self.engine is not None and part[0] else []

    def load(self, source: WeightSource, channel: Channel, version: int) -> None:
        """Loads the weights of `source`, together with all other ranks."""
        CollectiveWeightSource(source, channel).feed(self.engine, version)

    def sleep(self, _: None = None) -> int | None:
        """Gives device memory back; returns the version that is still held."""
        if self.engine is None:
            return None
        self.engine.sleep()
        return self.engine.version

    def restart(self, is_dead: bool) -> None:
        """Starts the engine anew if it is the one that died."""
        if is_dead and self.engine is not None:
            self.engine.restart()

    def close(self) -> None:
        """Closes the engine."""
        if self.engine is not None:
            self.engine.close()


class DistributedEngine:
    """The engines of all ranks as one, on the controller; tokens do not depend on the number of ranks."""

    def __init__(
        self,
        own: LocalEngine,
        control: Channel,
        engines: Channel,
        ranks_per_engine: int,
        on_controller_only: bool,
    ) -> None:
        """
        Args:
            own: the controller's.
            control: channel of the trainer's thread; weights use it.
            engines: channel of the generating thread; the same one unless generation overlaps training.
            ranks_per_engine: neighbouring ranks that make one engine together.
            on_controller_only: the other ranks have none.
        """
        self._own = own
        self._control = control
        self._engines = engines
        self._ranks_per_engine = ranks_per_engine
        self._on_controller_only = on_controller_only
        self._version = UNSYNCED_VERSION
        self._dead: set[int] = set()

    @property
    def version(self) -> int:
        """Policy version of the weights that all engines hold."""
        return self._version

    @property
    def num_engines(self) -> int:
        """Engines that share the requests, in contiguous parts of equal number."""
        return 1 if self._on_controller_only else self._control.size // self._ranks_per_engine

    def generate(self, requests: Sequence[GenerationRequest], sampling: SamplingParams) -> list[Generation]:
        """See `RolloutEngine.generate`. EngineDied brings everything that the living engines made."""
        check_synced(self._version)
        bounds = part_bounds(len(requests), self.num_engines)
        parts: list[Part] = [
            (requests[bounds[index] : bounds[index + 1]], sampling) for index in range(self.num_engines)
        ]
        outcomes = self._ask("generate", self._of_ranks(parts), lambda: self._own.generate(parts[0]))
        finished: dict[int, Generation] = {}
        reasons = self._reasons(outcomes)
        for index in range(self.num_engines):
            outcome = outcomes[index * self._ranks_per_engine]
            made = (
                outcome.error.finished
                if isinstance(outcome.error, EngineDied)
                else dict(enumerate(outcome.value))
            )
            finished |= {bounds[index] + number: generation for number, generation in made.items()}
        if reasons:
            self._version = UNSYNCED_VERSION
            raise EngineDied("; ".join(reasons), finished)
        return [finished[number] for number in range(len(requests))]

    def load_weights(self, source: WeightSource, version: int) -> None:
        """See `RolloutEngine.load_weights`. Collective: the workers must serve the control channel."""
        self._version = UNSYNCED_VERSION
        payloads = [version] * self._control.size
        outcomes = self._control.together(
            "load_weights", payloads, lambda: self._own.load(source, self._control, version)
        )
        if reasons := self._reasons(outcomes):
            raise EngineDied("; ".join(reasons))
        self._version = version

    def sleep(self) -> None:
        """See `RolloutEngine.sleep`."""
        held = values(self._ask("sleep", [None] * self._engines.size, self._own.sleep))
        if any(version is not None and version != self._version for version in held):
            self._version = UNSYNCED_VERSION

    def restart(self) -> None:
        """Starts the dead engines anew. Raises EngineError when one does not start."""
        dead = [rank in self._dead for rank in range(self._engines.size)]
        values(self._ask("restart", dead, lambda: self._own.restart(dead[0])))
        self._dead.clear()

    def close(self) -> None:
        """Closes the controller's engine; the workers close theirs."""
        self._version = UNSYNCED_VERSION
        self._own.close()

    def _ask(self, name: str, payloads: Sequence[Any], own: Callable[[], Any]) -> Sequence[Outcome]:
        """Outcomes of a command on all ranks that have an engine."""
        if not self._on_controller_only:
            return self._engines.together(name, payloads, own)
        try:
            return [Outcome(own())]
        except EngineError as error:
            return [Outcome(error=error)]

    def _of_ranks(self, parts: Sequence[Part]) -> list[Part]:
        return [
            part for part in parts for _ in range(1 if self._on_controller_only else self._ranks_per_engine)
        ]

    def _reasons(self, outcomes: Sequence[Outcome]) -> list[str]:
        """Reasons why engines died. Raises any other error."""
        values([outcome for outcome in outcomes if not isinstance(outcome.error, EngineDied)])
        died: Mapping[int, Any] = {
            rank: outcome.error for rank, outcome in enumerate(outcomes) if outcome.error is not None
        }
        self._dead |= set(died)
        return [f"rank {rank}: {reason}" for rank, reason in died.items()]


def part_bounds(length: int, num_parts: int) -> list[int]:
    """Ends of `num_parts` contiguous parts of nearly equal length, from 0 to `length`."""
    return [length * part // num_parts for part in range(num_parts + 1)]
