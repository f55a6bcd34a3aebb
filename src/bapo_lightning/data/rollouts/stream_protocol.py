"""`AsyncProtocol` for a stream: a pass is some decoding steps, and scoring overlaps with the next steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bapo_lightning.data.rollouts.async_protocol import AsyncProtocol
from bapo_lightning.data.rollouts.running_group import RunningGroup, SampledPass
from bapo_lightning.data.rollouts.stream_scheduler import StreamScheduler
from bapo_lightning.rollout.engine import GenerationRequest
from bapo_lightning.types import Group


@dataclass(eq=False)
class StreamProtocol(AsyncProtocol):
    """The trainer hands over its weights at every visit, between two calls of the engine."""

    scheduler: StreamScheduler

    def begin(self) -> list[GenerationRequest]:
        """Takes the replies that have come and begins a call; call `may_begin` first."""
        self.scheduler.take_replies()
        return super().begin()

    def sampled(self, sampled: SampledPass) -> tuple[list[RunningGroup], int]:
        """Ends a call. Returns the complete groups, to be scored during the next calls, and the version."""
        finished, version = super().sampled(sampled)
        self.scheduler.in_flight.begin_scoring(finished)
        self.in_pass = False
        return finished, version

    def scored(self, finished: Sequence[RunningGroup], groups: Sequence[Group], seconds: float) -> None:
        """Moves the `finished` groups of an earlier `sampled`, now scored as `groups`, to the next stage."""
        self.scheduler.add_scored(finished, groups, seconds)
