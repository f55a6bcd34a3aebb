"""Admission of groups to training: all, or DAPO's dynamic sampling (arXiv 2503.14476, section 3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from bapo_lightning.types import Group
from bapo_lightning.values import Count


class Admission(Protocol):
    """Decides which groups are trained on. Rejected ones are replaced by fresh ones, for at most `max_rounds`
    rounds of generation per rollout batch; then they fill it, with advantages of zero, so that its size never
    changes.
    """

    max_rounds: Count

    def admits(self, group: Group) -> bool:
        """Whether a scored group is trained on."""
        ...


@dataclass(frozen=True, slots=True)
class AdmitAll:
    """Trains on every sampled group, even without a signal."""

    max_rounds: Count = 1

    def admits(self, group: Group) -> bool:
        """Always true."""
        return True


@dataclass(frozen=True, slots=True)
class DynamicSampling:
    """Replaces groups whose scores are all equal: relative to the group, none of their answers is better than
    another. Advantages with another baseline lose by it what such groups would teach.
    """

    max_rounds: Count

    def admits(self, group: Group) -> bool:
        """True when scores differ."""
        return not group.is_uniform
