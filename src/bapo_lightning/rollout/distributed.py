"""Presents the engines of several ranks to the controller (rank 0) as one.

    DistributedEngine.generate(requests)  --contiguous parts-->  LocalEngine.generate on each rank
      generations, in order  <-----------------------------------  its part

Each rank has a separate engine, several ranks share one (tensor parallelism: they get the same part), or only
the controller has one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import torch

from bapo_lightning.rollout.engine import (
    FACTOR_MARK,
    MERGED,
    UNSYNCED_VERSION,
    EngineDied,
    Generation,
    GenerationRequest,
    MeasuredWeights,
    RolloutEngine,
    SamplingParams,
    StreamCall,
    Streamed,
    Wanted,
    WeightSource,
    check_synced,
)
from bapo_lightning.rollout.weight_digests import added
from bapo_lightning.system.errors import EngineError, Outcome
from bapo_lightning.system.phases import advance, phase
from bapo_lightning.system.ranks.channel import Channel, values

Part = tuple[Sequence[GenerationRequest], SamplingParams]
StreamPart = tuple[StreamCall, SamplingParams]
AnyPart = TypeVar("AnyPart", Part, StreamPart)


@dataclass(eq=False)
class LocalEngine:
    """A rank's engine, if it has one, which obeys the controller's commands."""

    engine: RolloutEngine | None

    def handlers(self) -> dict[str, Callable[[Any], Any]]:
        """Returns handlers of the commands on the channel of the engines."""
        commands = ("generate", "stream", "weight_digests", "sleep", "restart")
        return {name: getattr(self, name) for name in commands}

    def generate(self, part: Part) -> list[Generation]:
        """Samples this rank's part."""
        return self.engine.generate(*part) if self.engine is not None and part[0] else []

    def stream(self, part: StreamPart) -> dict[int, Streamed]:
        """Makes some steps of this rank's part of a stream."""
        return {} if self.engine is None else self.engine.stream(*part)

    def weight_digests(self, seed: int) -> Mapping[int, Mapping[str, int]]:
        """Returns digests of the weights held; of one worker's part if several ranks make one engine."""
        return {} if self.engine is None else self.engine.weight_digests(seed)

    def load(self, source: WeightSource, channel: Channel, version: int) -> None:
        """Loads the weights of `source`, together with all other ranks."""
        CollectiveWeightSource(source, channel).feed(self.engine, version)

    def sleep(self, _: None = None) -> int | None:
        """Releases device memory; returns the version that is still held."""
        if self.engine is None:
            return None
        self.engine.sleep()
        return self.engine.version

    def restart(self, is_dead: bool) -> None:
        """Restarts the engine if it is the one that died."""
        if is_dead and self.engine is not None:
            self.engine.restart()

    def close(self) -> None:
        """Closes the engine."""
        if self.engine is not None:
            self.engine.close()


@dataclass(eq=False)
class DistributedEngine(RolloutEngine):
    """Combines the engines of all ranks, on the controller; tokens do not depend on the number of ranks."""

    local: LocalEngine  # the controller's
    control: Channel  # of the trainer's thread; weights use it
    engines: Channel  # of the generating thread; the same channel unless generation overlaps training
    ranks_per_engine: int  # number of neighbouring ranks that together make one engine
    on_controller_only: bool  # the other ranks have none
    _dead: set[int] = field(default_factory=set, init=False)
    _streamed: dict[int, int] = field(default_factory=dict, init=False)  # engine of each request of a stream

    @property
    def num_engines(self) -> int:
        """Number of engines that share the requests, in contiguous parts of equal size."""
        return 1 if self.on_controller_only else self.control.size // self.ranks_per_engine

    def generate(self, requests: Sequence[GenerationRequest], sampling: SamplingParams) -> list[Generation]:
        """Samples on all ranks. EngineDied carries everything that the living engines made."""
        check_synced(self.version)
        bounds = part_bounds(len(requests), self.num_engines)
        parts: list[Part] = [
            (requests[bounds[index] : bounds[index + 1]], sampling) for index in range(self.num_engines)
        ]
        outcomes = self._ask("generate", self._of_ranks(parts), lambda: self._generate_part(parts[0]))
        finished: dict[int, Generation] = {}
        for index in range(self.num_engines):
            outcome = outcomes[index * self.ranks_per_engine]
            part = (
                outcome.error.finished
                if isinstance(outcome.error, EngineDied)
                else dict(enumerate(outcome.value or ()))
            )
            finished |= {bounds[index] + number: generation for number, generation in part.items()}
        self._check_alive(outcomes, finished)
        return [finished[number] for number in range(len(requests))]

    def stream(self, call: StreamCall, sampling: SamplingParams) -> dict[int, Streamed]:
        """Makes the same steps on all ranks. A request goes to the engine with the fewest and stays there."""
        check_synced(self.version)
        for number in call.given_up:
            self._streamed.pop(number, None)
        loads = Counter(self._streamed.values())
        placed: list[dict[int, GenerationRequest]] = [{} for _ in range(self.num_engines)]
        for number, request in call.begun.items():
            engine = self._streamed[number] = min(range(self.num_engines), key=lambda index: loads[index])
            loads[engine] += 1
            placed[engine][number] = request
        parts = [(replace(call, begun=begun), sampling) for begun in placed]
        outcomes = self._ask("stream", self._of_ranks(parts), lambda: self.local.stream(parts[0]))
        self._check_alive(outcomes)
        streamed = {
            number: each
            for outcome in outcomes[:: self.ranks_per_engine]
            for number, each in outcome.value.items()
        }
        for number, each in streamed.items():
            if each.finish is not None:
                del self._streamed[number]
        return streamed

    def generate_on_each(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams
    ) -> Mapping[int, Sequence[Generation]]:
        """Samples the same requests on every engine."""
        if self.on_controller_only and self.local.engine is not None:
            return self.local.engine.generate_on_each(requests, sampling)
        whole = [(requests, sampling)] * self.num_engines
        outcomes = self._ask("generate", self._of_ranks(whole), lambda: self._generate_part(whole[0]))
        self._check_alive(outcomes)
        return {index: outcomes[index * self.ranks_per_engine].value for index in range(self.num_engines)}

    def weight_digests(self, seed: int) -> dict[int, dict[str, int]]:
        """Returns digests of the weights that each engine holds."""
        outcomes = self._ask(
            "weight_digests", [seed] * self.engines.size, lambda: self.local.weight_digests(seed)
        )
        self._check_alive(outcomes)
        digests = values(outcomes)
        if self.on_controller_only:
            return dict(digests[0])
        size = self.ranks_per_engine
        return {
            index: added(each.get(0, {}) for each in digests[index * size : (index + 1) * size])
            for index in range(self.num_engines)
        }

    def take_counts(self) -> dict[str, float]:
        """Metrics of the controller's engine."""
        return {} if self.local.engine is None else self.local.engine.take_counts()

    def load_weights(self, source: WeightSource, version: int) -> None:
        """Gives all engines the weights. The workers must serve the control channel."""
        self.version = UNSYNCED_VERSION
        payloads = [version] * self.control.size
        outcomes = self.control.together(
            "load_weights", payloads, lambda: self.local.load(source, self.control, version)
        )
        self._check_alive(outcomes)
        self.version = version

    def sleep(self) -> None:
        """Gives the device memory of all ranks to the trainer."""
        held = values(self._ask("sleep", [None] * self.engines.size, self.local.sleep))
        if any(version is not None and version != self.version for version in held):
            self.version = UNSYNCED_VERSION

    def restart(self) -> None:
        """Restarts the dead engines. Raises EngineError; the next call restarts only those left."""
        dead = [rank in self._dead for rank in range(self.engines.size)]
        outcomes = self._ask("restart", dead, lambda: self.local.restart(dead[0]))
        self._dead = {rank for rank, outcome in enumerate(outcomes) if outcome.error is not None}
        values(outcomes)

    def close(self) -> None:
        """Closes the controller's engine; the workers close theirs."""
        self.version = UNSYNCED_VERSION
        self.local.close()

    def _ask(self, name: str, payloads: Sequence[Any], local_call: Callable[[], Any]) -> Sequence[Outcome]:
        if not self.on_controller_only:
            return self.engines.together(name, payloads, local_call)
        try:
            return [Outcome(local_call())]
        except EngineError as error:
            return [Outcome(error=error)]

    def _generate_part(self, part: Part) -> list[Generation]:
        with phase("on rank 0", len(part[0])):
            generations = self.local.generate(part)
        advance(len(generations))
        return generations

    def _of_ranks(self, parts: Sequence[AnyPart]) -> list[AnyPart]:
        return [
            part for part in parts for _ in range(1 if self.on_controller_only else self.ranks_per_engine)
        ]

    def _check_alive(
        self, outcomes: Sequence[Outcome], finished: Mapping[int, Generation] | None = None
    ) -> None:
        """Raises EngineDied for engines that died; other errors are raised first."""
        values([outcome for outcome in outcomes if not isinstance(outcome.error, EngineDied)])
        died = {rank: outcome.error for rank, outcome in enumerate(outcomes) if outcome.error is not None}
        if died:
            self._dead |= set(died)
            self.version = UNSYNCED_VERSION
            self._streamed.clear()
            raise EngineDied("; ".join(f"rank {rank}: {reason}" for rank, reason in died.items()), finished)


def part_bounds(length: int, num_parts: int) -> list[int]:
    """Returns the bounds of `num_parts` contiguous parts of nearly equal length, from 0 to `length`."""
    return [length * part // num_parts for part in range(num_parts + 1)]


@dataclass
class CollectiveWeightSource:
    """A `WeightSource` for the engine of this rank, during one `feed`.

    Ranks gather sharded weights together, tensor by tensor, but engines do not request them in step: one
    starts again with the first tensor, another dies half-way, a third rank has no engine, and a restarted
    engine needs weights that the others have. So ranks agree before each pass, and every rank completes it.
    """

    source: WeightSource  # the policy; going through its weights may be a collective
    channel: Channel  # of the trainer's threads
    _passes: list[Generator[tuple[str, torch.Tensor]]] = field(default_factory=list, init=False)

    def feed(self, engine: RolloutEngine | None, version: int) -> None:
        """Gives `engine` the weights as policy `version`; without an engine, only helps the other ranks.
        Every rank must call it. Raises EngineError if this rank's engine failed; the engines of other ranks
        still get theirs.
        """
        try:
            if engine is not None:
                engine.load_weights(self, version)
        finally:
            for each in self._passes:
                each.close()
            while (wanted := widest(self.channel.all(None))) is not None:
                for _ in self.source.named_weights(wanted):
                    pass

    def named_weights(self, wanted: Wanted = MERGED) -> Iterator[tuple[str, torch.Tensor]]:
        """Makes one pass over all weights."""
        self._passes.append(self._one_pass(wanted))
        return self._passes[-1]

    def weight_shapes(self) -> Iterator[tuple[str, torch.dtype, torch.Size]]:
        """See `MeasuredWeights`; no collective."""
        return cast(MeasuredWeights, self.source).weight_shapes()

    def _one_pass(self, wanted: Wanted) -> Generator[tuple[str, torch.Tensor]]:
        everyones = widest(self.channel.all(wanted))
        assert everyones is not None
        weights = self.source.named_weights(everyones)
        try:
            for name, weight in weights:
                if wanted == everyones or FACTOR_MARK in name:
                    yield name, weight
        finally:
            for _ in weights:
                pass


def widest(wanted: Sequence[Wanted | None]) -> Wanted | None:
    """Returns the pass that includes what every rank wants: engines differ only in the weights they have."""
    return max(filter(None, wanted), key=lambda each: each.content != "adapters", default=None)
