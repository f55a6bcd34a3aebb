"""Which past groups are worth keeping, and what they are worth when they are trained on again. Without a
rule, groups whose scores differ are kept, with the advantages that they had.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bapo_lightning.data.rollouts.stages import BatchStage, EnteringBatch, StageTools
from bapo_lightning.data.run_facts import RunFacts
from bapo_lightning.types import Group
from bapo_lightning.values import Count


class ReplayRule(BatchStage):
    """Belongs to a `ReuseBuffer`, which limits ages, shares and repetitions by the regime."""

    needs_whole_batch = True
    gives_advantages = "to some"
    capacity: Count | None = None  # samples kept, the newest; None: all that are young enough

    @staticmethod
    def run_problems(options: Mapping[str, Any], run: RunFacts) -> Iterator[str]:
        """Yields that the regime keeps no groups."""
        if not run.regime.reuse_share:
            yield (
                f" trains on groups of earlier batches, and regime={run.regime.name} keeps none; write "
                "regime=reuse, or the regime that bears the algorithm's name"
            )

    def __call__(self, batch: EnteringBatch, tools: StageTools) -> dict[str, float]:
        """Gives past groups the advantages that they have among fresh ones."""
        batch.replayed = self.valued(batch.replayed, batch.fresh)
        return {}

    @property
    @abstractmethod
    def is_ready(self) -> bool:
        """Whether the next batch may hold groups of earlier ones."""

    @abstractmethod
    def kept(self, group: Group) -> Group | None:
        """Returns what is kept of a group that was just trained on for the first time, if anything."""

    @abstractmethod
    def valued(self, replayed: Sequence[Group], fresh: Sequence[Group]) -> list[Group]:
        """Returns the same groups with the advantages that they have in a batch with `fresh` ones. Called
        for every batch, also where none is replayed.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Returns what it remembers, as primitives."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state."""
