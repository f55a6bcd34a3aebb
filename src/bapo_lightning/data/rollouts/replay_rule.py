"""Rules for which past groups to keep, and for their advantages when they are trained on again. Without a
rule, groups whose scores differ are kept, with their old advantages.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bapo_lightning.data.rollouts.stages import BatchStage, EnteringBatch, StageTools
from bapo_lightning.data.run_facts import RunFacts
from bapo_lightning.system.values import Count
from bapo_lightning.types import Group


class ReplayRule(BatchStage):
    """Used by a `ReuseBuffer`, which limits ages, shares and repetitions by the regime."""

    needs_whole_batch = True
    gives_advantages = "to some"
    capacity: Count | None = None  # number of newest samples kept; None: all that are young enough

    @staticmethod
    def run_problems(options: Mapping[str, Any], run: RunFacts) -> Iterator[str]:
        """Yields a message if the regime keeps no groups."""
        if not run.regime.reuse_share:
            yield (
                f" trains on groups of earlier batches, and regime={run.regime.name} keeps none; write "
                "regime=reuse, or the regime that bears the algorithm's name"
            )

    def __call__(self, batch: EnteringBatch, tools: StageTools) -> dict[str, float]:
        """Gives past groups their advantages among fresh groups."""
        batch.replayed = self.valued(batch.replayed, batch.fresh)
        return {}

    @property
    @abstractmethod
    def is_ready(self) -> bool:
        """Whether the next batch may hold groups of earlier batches."""

    @abstractmethod
    def kept(self, group: Group) -> Group | None:
        """Returns the part to keep of a group that was just trained on for the first time, if any."""

    @abstractmethod
    def valued(self, replayed: Sequence[Group], fresh: Sequence[Group]) -> list[Group]:
        """Returns the groups with their advantages among `fresh` ones. Called for every batch."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Returns its memory as primitives."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state."""
