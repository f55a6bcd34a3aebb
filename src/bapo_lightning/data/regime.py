"""How stale the data may be when it is trained on (conf group `regime/`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplayRegime:
    """Every rollout batch is trained on for `epochs` passes of `minibatches` updates each, then replaced by a fresh one.

    `epochs=1, minibatches=1` is on-policy training.
    """

    name: str
    epochs: int  # E: passes over each rollout batch
    minibatches: int  # M: optimizer updates in one pass

    @property
    def updates_per_rollout_batch(self) -> int:
        """The paper's staleness: E * M updates use one rollout batch."""
        return self.epochs * self.minibatches

    @property
    def max_age(self) -> int:
        """Largest age in updates a token can have when consumed: weights are pulled right before generation, so the first
        update sees age 0 and the last of the E * M sees E * M - 1.
        """
        return self.updates_per_rollout_batch - 1
