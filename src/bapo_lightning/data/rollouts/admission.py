"""Which groups are trained on: all of them, or DAPO's dynamic sampling (arXiv 2503.14476, section 3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from bapo_lightning.types import Group


class Admission(Protocol):
    """Says which groups are trained on. Those refused are replaced by fresh ones, for at most `max_rounds`
    rounds of generation per rollout batch; then they fill it, so that its size never changes.
    """

    max_rounds: int

    def admits(self, group: Group) -> bool:
        """Whether a scored group is trained on."""
        ...


@dataclass(frozen=True, slots=True)
class AdmitAll:
    """Every sampled group is trained on, also those that carry no signal."""

    max_rounds: int = 1

    def admits(self, group: Group) -> bool:
        """Always."""
        return True


@dataclass(frozen=True, slots=True)
class DynamicSampling:
    """Groups whose scores are all equal are replaced: their advantages are zero."""

    max_rounds: int

    def admits(self, group: Group) -> bool:
        """When scores differ."""
        return not group.is_uniform
