"""An engine in virtual time, with those methods of `RestartingEngine` that collectors call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bapo_lightning.extras.simulation.fleet import FleetPass, VirtualFleet
from bapo_lightning.extras.simulation.fleet_stream import FleetStream
from bapo_lightning.rollout.engine import (
    UNSYNCED_VERSION,
    Generation,
    GenerationRequest,
    SamplingParams,
    StreamCall,
    Streamed,
)
from bapo_lightning.types import FinishReason, Segment


@dataclass(frozen=True, slots=True)
class _Unwritten:
    """Number of tokens, or of log-probs, in place of an array."""

    count: int

    def __len__(self) -> int:
        return self.count

    def __add__(self, other: _Unwritten) -> _Unwritten:
        return _Unwritten(self.count + other.count)


unwritten: Any = _Unwritten


@dataclass(frozen=True, slots=True)
class VirtualRequest(GenerationRequest):
    """A request with a known end of its response."""

    left: int = 0  # tokens to the end of the response


@dataclass(eq=False)
class VirtualEngine:
    """A fleet with those methods of `RestartingEngine` that collectors call; `owed` adds up its time."""

    fleet: VirtualFleet
    sync_seconds: float  # of the trainer
    load_seconds: float  # of the fleet
    now: Callable[[], float]
    version: int = UNSYNCED_VERSION
    ready_at: float = 0.0  # seconds; time at which the last weights have arrived
    owed: float = 0.0  # seconds of calls that the clock has not counted yet
    stream: FleetStream | None = None  # the work between two calls of a stream
    passes: list[tuple[float, FleetPass]] = field(default_factory=list)  # with their starts
    syncs: list[tuple[float, float]] = field(default_factory=list)  # starts and seconds

    def generate(self, requests: Sequence[VirtualRequest], sampling: SamplingParams) -> list[Generation]:
        """Samples all requests."""
        tokens = [min(request.max_new_tokens, request.left) for request in requests]
        work = [(len(request.token_ids), count) for request, count in zip(requests, tokens, strict=True)]
        begin = self.now() + self.owed
        self._pass(begin, self.fleet.run(begin, work))
        return [
            Generation(
                Segment(unwritten(count), unwritten(count), self.version),
                FinishReason.STOP if count == request.left else FinishReason.LENGTH,
            )
            for request, count in zip(requests, tokens, strict=True)
        ]

    def stream_once(self, call: StreamCall, sampling: SamplingParams) -> dict[int, Streamed]:
        """Some steps; reports the responses that start or end in them, others later."""
        assert self.stream is not None
        for number in call.given_up:
            self.stream.give_up(number)
        for number, request in call.begun.items():
            assert isinstance(request, VirtualRequest)
            self.stream.enter(number, len(request.token_ids), min(request.max_new_tokens, request.left))
        begin = self.now() + self.owed
        done, pieces, ended = self.stream.call(begin)
        self._pass(begin, done)
        return {
            number: Streamed(
                tuple(Segment(unwritten(count), unwritten(count), version) for count, version in parts),
                FinishReason.STOP if number in ended else None,
            )
            for number, parts in pieces.items()
        }

    def stream_on(self) -> bool:
        """Makes some more steps if no response starts or ends in them; returns whether it did."""
        assert self.stream is not None
        begin = self.now() + self.owed
        done = self.stream.quiet_call(begin)
        if done is not None:
            self._pass(begin, done)
        return done is not None

    def load(self, version: int) -> None:
        """Takes weights."""
        self.version = version
        if self.stream is not None:
            self.stream.load(version)
        self.syncs.append((self.now() + self.owed, self.sync_seconds))
        self.ready_at = self.now() + self.owed + self.load_seconds
        self.owed += self.sync_seconds

    def take_owed(self) -> float:
        """Returns the seconds since the last call, for the clock."""
        owed, self.owed = self.owed, 0.0
        return owed

    def sleep(self) -> None:
        """Does nothing."""

    def _pass(self, begin: float, done: FleetPass) -> None:
        self.passes.append((begin, done))
        self.owed += done.seconds
