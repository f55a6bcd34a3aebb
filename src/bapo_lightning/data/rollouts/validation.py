"""Validation sets: held-out problems, answered by the rollout engine and scored by training's reward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bapo_lightning.data.rollouts.answers import all_asked, outcome_of, sample_answers
from bapo_lightning.data.rollouts.sampler import RolloutSampler
from bapo_lightning.evaluation.metrics import evaluation_metrics
from bapo_lightning.types import Problem, Sample


@dataclass(frozen=True, slots=True)
class ValidationSet:
    """A named set of problems, each answered `num_samples` times."""

    name: str
    problems: Sequence[Problem]
    num_samples: int
    seed: int  # of the sampling, apart from training's

    def answers(self, sampler: RolloutSampler) -> list[Sample]:
        """Returns the scored answers under the engine's current weights, problem by problem."""
        asked = all_asked(self.problems, self.num_samples)
        return sample_answers(replace(sampler, seed=self.seed), asked)

    def metrics(self, answers: Sequence[Sample]) -> dict[str, float]:
        """Returns `val/<set>/<metric>` for every metric of `evaluation.outcome` that is defined."""
        outcomes = [outcome_of(answer) for answer in answers]
        starts = range(0, len(outcomes), self.num_samples)
        # Only one rank has the answers; the others would be waited for.
        metrics = evaluation_metrics(self.num_samples, sync_on_compute=False)
        metrics.update([outcomes[first : first + self.num_samples] for first in starts])
        values = {name: float(value) for name, value in metrics.compute().items()}
        return {f"val/{self.name}/{name}": value for name, value in values.items() if not math.isnan(value)}
