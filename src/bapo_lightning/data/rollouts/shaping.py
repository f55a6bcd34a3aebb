"""DAPO's term for the length of a response, whatever it answers."""

from __future__ import annotations

from dataclasses import dataclass

from bapo_lightning.data.rollouts.rules import GroupRule
from bapo_lightning.system.values import Count, PositiveFactor
from bapo_lightning.types import Rollout


@dataclass(frozen=True)
class OverlongPenalty(GroupRule):
    """DAPO's soft overlong punishment (arXiv 2503.14476, Eq. 13) of a response of L tokens:

    0                                        L <= limit - buffer
    factor * (limit - buffer - L) / buffer   between
    -factor                                  L >= limit
    """

    limit: Count  # longest response the run allows
    buffer: Count  # length of the ramp before the limit
    # Largest penalty. In DAPO it is 1, with right and wrong answers 2 apart (+1 and -1); here they are 1
    # apart (1 and 0), so that half the penalty has the same weight.
    factor: PositiveFactor = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.buffer <= self.limit:
            raise ValueError(f"the overlong buffer must be in 1..limit ({self.limit}), got {self.buffer}")

    def shape(self, rollout: Rollout, version: int) -> float:
        """Returns the penalty, in [-factor, 0]."""
        over = rollout.length - (self.limit - self.buffer)
        return -self.factor * min(max(over / self.buffer, 0.0), 1.0)
