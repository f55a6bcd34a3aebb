"""DAPO's dynamic sampling (arXiv 2503.14476, section 3.2)."""

from __future__ import annotations

from dataclasses import dataclass, field

from bapo_lightning.data.rollouts.rules import GroupRule
from bapo_lightning.system.values import Count
from bapo_lightning.types import Group


@dataclass(frozen=True)
class DynamicSampling(GroupRule):
    """Replaces groups whose scores are all equal, in which no answer is better than another. Algorithms
    with a baseline other than the group then lose what these groups would teach.
    """

    max_rounds: Count = field()  # required: the default of other rules does not apply

    def admits(self, group: Group) -> bool:
        """Returns True if scores differ."""
        return not group.is_uniform
