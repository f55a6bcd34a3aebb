"""Keeps results of a stream's requests, which an engine continues during other calls, until taken."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from bapo_lightning.rollout.engine import Streamed
from bapo_lightning.system.phases import advance
from bapo_lightning.types import FinishReason, Segment


@dataclass(eq=False)
class Gathered:
    """Results of a stream's requests since they were last taken."""

    _segments: dict[int, list[Segment]] = field(default_factory=dict, init=False)
    _finished: dict[int, FinishReason] = field(default_factory=dict, init=False)

    def add(self, number: int, fresh: Segment, finish: FinishReason | None) -> None:
        """Adds tokens of a request, possibly its last."""
        parts = self._segments.setdefault(number, [])
        if parts and parts[-1].version == fresh.version:
            fresh = parts.pop().joined(fresh)
        if fresh.token_ids:
            parts.append(fresh)
        if finish is not None:
            self._finished[number] = finish
            advance()

    def drop(self, numbers: Iterable[int]) -> None:
        """Forgets requests."""
        for number in numbers:
            self._segments.pop(number, None)
            self._finished.pop(number, None)

    def take(self) -> dict[int, Streamed]:
        """Returns the results of the requests since the last call."""
        segments, finished, self._segments, self._finished = self._segments, self._finished, {}, {}
        return {number: Streamed(tuple(parts), finished.get(number)) for number, parts in segments.items()}
