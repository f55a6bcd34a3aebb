"""Rollouts of one pass of the engine, before the scheduler has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bapo_lightning.rollout.engine import GenerationRequest
from bapo_lightning.types import Rollout


@dataclass(frozen=True)
class SampledPass:
    """The requests of a pass, and what came of them."""

    requests: Sequence[GenerationRequest]
    continued: Mapping[int, Rollout]  # rollouts after it, by number of the request; a lost engine leaves gaps
    seconds: float
    rounds: Sequence[Sequence[int]] = ()  # `Rounds.taken`

    @property
    def is_lost(self) -> bool:
        """Whether the engine died in it."""
        return len(self.continued) < len(self.requests)
