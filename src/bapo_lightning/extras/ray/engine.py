"""A fleet of engines on the nodes of a Ray cluster, behind the contract of one engine.

    RayEngine.generate(requests) --calls of a few requests--> any free engine
      generations, in order      <-------------------------   its samples

Which requests share a call does not depend on the number of engines, and neither do tokens and log-probs.
"""

from __future__ import annotations

import pickle
import sys
import threading
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from annotated_types import Le

from bapo_lightning.extras.ray import require_ray
from bapo_lightning.rollout.engine import (
    MERGED,
    UNSYNCED_VERSION,
    EngineDied,
    Generation,
    GenerationRequest,
    RolloutEngine,
    RunsIn,
    SamplingParams,
    StreamCall,
    Streamed,
    WeightSource,
    check_synced,
)
from bapo_lightning.system.errors import EngineError
from bapo_lightning.system.values import Count, Megabytes, NonNegative, Positive, Seconds, Threads

if TYPE_CHECKING:
    from bapo_lightning.extras.ray.fleet import Fleet
    from bapo_lightning.extras.ray.members import Member
    from bapo_lightning.extras.ray.weights import StoredWeights

# Nats: a late engine must answer the probe like the proven ones, otherwise it waits for the next weights.
LATE_TOLERANCE = 1e-3


@dataclass(eq=False)
class RayEngine(RolloutEngine):
    """Several engines as Ray actors. Only `close` may be called during another call."""

    runs_in: ClassVar[RunsIn] = "fleet"
    streams: ClassVar[bool] = True
    model_path: str  # Hugging Face folder or hub name, the same on all nodes
    # Called in each actor as `make_engine(model_path=model_path)`; picklable, such as a partial of a class.
    make_engine: Callable[..., RolloutEngine]
    # auto: the cluster this machine belongs to; HOST:PORT: that head node's; None: starts one here.
    address: str | None = None
    actors: Count | Literal["auto"] = "auto"  # auto: as many as the nodes have room for, now and later
    cpus: Annotated[Positive, Le(4096)] = 1.0  # of each actor
    gpus: Annotated[NonNegative, Le(4096)] | None = None  # of each actor; None: one if the cluster has any
    cpu_threads: Threads | None = None  # of an engine's kernels; None: as many as it has CPUs
    requests_per_call: Count = 64  # sampled together by one engine, which then requests more
    deadline_seconds: Seconds = 3600  # an actor that needs longer for a call counts as dead
    start_seconds: Seconds = 900  # the same for its start
    # Where Ray started the trainer's ranks; `together`: on the fleet's devices, so that these take turns.
    ranks: Literal["apart", "together"] | None = None
    part_megabytes: Megabytes = 256  # extra memory of a weight sync; a larger tensor is a separate part
    _stored: StoredWeights | None = field(default=None, init=False)  # of that version, for late engines
    _base: list[Any] = field(default_factory=list, init=False)  # stored weights under adapters
    # Requests of the last probe and its answer, with which late engines are compared.
    _proof: tuple[tuple[Any, ...], Any] | None = field(default=None, init=False)
    _reported: Counter[str] = field(default_factory=Counter, init=False)  # counts since `take_counts`
    _busy: threading.Lock = field(default_factory=threading.Lock, init=False)
    _closed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        """Joins or starts the cluster and starts the actors, so that errors show before a run begins."""
        require_ray("rollout=ray", "rollout=hf_child")
        from bapo_lightning.extras.ray import joining
        from bapo_lightning.extras.ray.fleet import Fleet
        from bapo_lightning.extras.ray.streams import FleetStreams

        self._streams = FleetStreams()
        wanted = None if self.actors == "auto" else self.actors
        recipe = pickle.dumps(partial(self.make_engine, model_path=self.model_path))
        self._joined = joining.join(self.address, self.cpus * (wanted or 1), "rollout.engine.address")
        try:
            self._fleet = Fleet(
                wanted,
                self.cpus,
                float(joining.has_gpus()) if self.gpus is None else self.gpus,
                (sys.path, self.cpu_threads, recipe),
                self.deadline_seconds,
                self.start_seconds,
                self._catch_up,
                lambda answer: self._proof is not None and same_answer(answer, self._proof[1]),
            )
            self._fleet.grow()
            self._fleet.settle()
        except BaseException:
            self.close()
            raise

    def generate(self, requests: Sequence[GenerationRequest], sampling: SamplingParams) -> list[Generation]:
        """Samples on all engines; the others sample a lost one's requests from the same seeds. EngineDied:
        none is left.
        """
        check_synced(self.version)
        size = self.requests_per_call
        tasks = [
            (list(requests[first : first + size]), sampling, self.version)
            for first in range(0, len(requests), size)
        ]
        with self._talk(size) as fleet:
            return [generation for part in fleet.share("generate", tasks) for generation in part]

    def stream(self, call: StreamCall, sampling: SamplingParams) -> dict[int, Streamed]:
        """The same steps on all engines. A request stays with its engine as long as that lives."""
        check_synced(self.version)
        with self._talk() as fleet:
            return self._streams.run(fleet, call, sampling, self.version)

    def generate_on_each(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams
    ) -> dict[int, list[Generation]]:
        """The generations of every engine for the same requests, by the engine's number in this run."""
        check_synced(self.version)
        call = list(requests), sampling, self.version
        with self._talk() as fleet:
            by_member = fleet.call_members(fleet.ready, "generate", *call)
        answers = {member.number: generations for member, generations in by_member.items()}
        self._proof = call, next(iter(answers.values()))
        return answers

    def load_weights(self, source: WeightSource, version: int) -> None:
        """Stores the weights once and lets every engine load them; new ones take part from now on."""
        from bapo_lightning.extras.ray.members import STARTING, Stage

        self.version, self._stored, self._proof = UNSYNCED_VERSION, None, None
        with self._talk() as fleet:
            fleet.grow()
            stored = self._store(fleet, source)
            fleet.step()  # those made in the meantime
            loading = [member for member in fleet.members if member.stage not in STARTING]
            for member in loading:
                fleet.counts["joined"] += member.stage is not Stage.READY
                member.stage, member.held_back = Stage.READY, False
            fleet.call_members(loading, "load_weights", stored, version)
        self.version, self._stored = version, stored

    def weight_digests(self, seed: int) -> dict[int, dict[str, int]]:
        """Digests of the weights that every engine holds, by the engine's number in this run."""
        with self._talk() as fleet:
            by_member = fleet.call_members(fleet.ready, "weight_digests", seed)
        return {member.number: digests for member, digests in by_member.items()}

    def sleep(self) -> None:
        """Gives device memory to ranks on the same devices; with separate devices, keeps it."""
        if self.ranks == "together" and self.version != UNSYNCED_VERSION:
            with self._talk() as fleet:
                held = fleet.call_members(fleet.ready, "sleep")
            if any(version != self.version for version in held.values()):
                self.version, self._stored, self._proof = UNSYNCED_VERSION, None, None

    def restart(self) -> None:
        """Starts actors until one is made. Raises EngineError if none is, or after `close`."""
        with self._talk() as fleet:
            fleet.grow()
            fleet.settle()

    def close(self) -> None:
        """Ends the actors, and the cluster if it was started here. A running call ends with EngineError."""
        self._closed = True
        self.version, self._stored = UNSYNCED_VERSION, None
        if (fleet := self.__dict__.get("_fleet")) is not None:
            fleet.close()
        if self._busy.acquire(blocking=False):  # otherwise the thread inside the call leaves the cluster
            try:
                self._leave()
            finally:
                self._busy.release()

    def take_counts(self) -> dict[str, float]:
        """Metrics: number of engines now, and what happened to them since the last call."""
        fleet, fresh = self._fleet, self._fleet.counts - self._reported
        self._reported = Counter(fleet.counts)
        return {
            "fleet/engines": len(fleet.ready),
            "fleet/nodes": len({member.node for member in fleet.ready}),
            "fleet/joined": fresh["joined"],
            "fleet/lost": fresh["lost"],
            "fleet/refused": fresh["refused"],
            "fleet/reissued": fresh["reissued"],
        }

    def _store(self, fleet: Fleet, source: WeightSource) -> StoredWeights:
        from bapo_lightning.extras.ray.members import STARTING
        from bapo_lightning.extras.ray.weights import store

        started = (member for member in fleet.members if member.stage not in STARTING)
        wanted = next((member.wanted for member in started), MERGED)
        if self._base:
            wanted = replace(wanted, content="adapters")
        stored = store(source, self.part_megabytes, wanted)
        stored.base = stored.base or self._base
        self._base = stored.base if stored.parts else []  # without adapters these are trained
        return stored

    def _catch_up(self, member: Member) -> bool:
        if self._proof is None or self._stored is None:
            return False
        member.ask("load_weights", self._stored, self.version)
        member.ask("generate", *self._proof[0])
        return True

    @contextmanager
    def _talk(self, size: int = 1) -> Iterator[Fleet]:
        """Context of one call, whose tasks have `size` requests; if all engines end, no weights are left."""
        from bapo_lightning.extras.ray.fleet import NoneLeft
        from bapo_lightning.extras.ray.joining import check_cluster

        with self._busy:
            if self._closed:
                raise EngineError("the engine was closed")
            try:
                check_cluster()
                yield self._fleet
            except NoneLeft as end:
                self.version, self._stored, self._proof = UNSYNCED_VERSION, None, None
                if self._closed:
                    raise EngineError("the engine was closed while it was at work") from None
                check_cluster()
                finished: Mapping[int, Generation] = {
                    number * size + place: generation
                    for number, generations in end.done.items()
                    for place, generation in enumerate(generations)
                }
                raise EngineDied(str(end), finished) from None
            finally:
                if self._closed:
                    self._leave()

    def _leave(self) -> None:
        from bapo_lightning.extras.ray import joining

        if self.__dict__.get("_joined"):
            self._joined = False
            joining.leave()


def same_answer(answer: Sequence[Generation], proven: Sequence[Generation]) -> bool:
    """Whether two engines sampled the same tokens, with the same log-probs except for rounding."""

    def tokens(generations: Sequence[Generation]) -> list[array[int]]:
        return [generation.segment.token_ids for generation in generations]

    def logprobs(generations: Sequence[Generation]) -> list[float]:
        return [value for generation in generations for value in generation.segment.logprobs]

    return tokens(answer) == tokens(proven) and (
        fmean(abs(a - b) for a, b in zip(logprobs(answer), logprobs(proven), strict=True)) <= LATE_TOLERANCE
    )
