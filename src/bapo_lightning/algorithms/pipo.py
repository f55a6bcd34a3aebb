"""PIPO: trains on the previous batch again, with the sign of the reward's change (arXiv 2604.00860)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, pstdev
from typing import Any

from bapo_lightning.data.rollouts.replay_rule import ReplayRule
from bapo_lightning.objectives.advantages.group import LEAST_DEVIATION
from bapo_lightning.system.values import Count, NonNegative, Positive
from bapo_lightning.types import Group


@dataclass(eq=False)
class ProgressReplay(ReplayRule):
    """Trains once more on the previous batch, forwards after progress and backwards after a loss, like PIPO
    (arXiv 2604.00860).

    Advantages are multiplied by phi(xi), where xi = (mu_t - mean(mu)) / std(mu) compares the mean reward of
    this batch with the means of the `window` batches before it; phi(xi) is xi, times `damping` if xi is
    negative. A deviation below 1e-8 counts as 1. The regime's `reuse_minibatches=before` makes these updates
    before the updates on the batch itself (regime=pipo). In the authors' code the history holds the present
    batch and all others twice, and `by_magnitude` divides advantages by their mean magnitude in the group.
    """

    window: Count = 8
    damping: NonNegative = 0.1
    by_magnitude: bool = False
    limit: Positive = 10.0  # of advantages, as in the authors' code: the standard deviation may be tiny
    _means: deque[float] = field(init=False)
    capacity: Count | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._means = deque(maxlen=self.window)

    @property
    def is_ready(self) -> bool:
        """True once the history is complete."""
        return len(self._means) == self.window

    def kept(self, group: Group) -> Group | None:
        """Returns the group, unless all its advantages are zero."""
        return group if any(group.advantages) else None

    def valued(self, replayed: Sequence[Group], fresh: Sequence[Group]) -> list[Group]:
        """See the class."""
        mean = fmean(reward for group in fresh for reward in group.rewards)
        factor = self._factor(mean) if replayed else 0.0
        self._means.append(mean)
        return [replace(group, advantages=self._scaled(group.advantages, factor)) for group in replayed]

    def _factor(self, mean: float) -> float:
        deviation = pstdev(self._means)
        progress = (mean - fmean(self._means)) / (1.0 if deviation < LEAST_DEVIATION else deviation)
        return progress if progress >= 0 else self.damping * progress

    def _scaled(self, advantages: Sequence[float], factor: float) -> tuple[float, ...]:
        unit = fmean(map(abs, advantages)) if self.by_magnitude else 1.0
        return tuple(max(-self.limit, min(value / unit * factor, self.limit)) for value in advantages)

    def state_dict(self) -> dict[str, Any]:
        """Returns the mean rewards."""
        return {"means": list(self._means)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state."""
        self._means = deque(state["means"], maxlen=self.window)
