"""DAPO's dynamic sampling (arXiv 2503.14476, section 3.2)."""

from __future__ import annotations

from dataclasses import dataclass, field

from bapo_lightning.data.rollouts.rules import GroupRule
from bapo_lightning.types import Group
from bapo_lightning.values import Count


@dataclass(frozen=True)
class DynamicSampling(GroupRule):
    """Replaces groups whose scores are all equal: relative to the group, none of their answers is better than
    another. Advantages with another baseline lose by it what such groups would teach.
    """

    max_rounds: Count = field()  # no default: not even that of other rules

    def admits(self, group: Group) -> bool:
        """Returns whether scores differ."""
        return not group.is_uniform
