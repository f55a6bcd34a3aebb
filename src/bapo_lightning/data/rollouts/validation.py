"""Validation sets: held-out problems, answered by the rollout engine and scored by training's reward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from bapo_lightning.data.rollouts.answers import all_asked, outcome_of, sample_answers
from bapo_lightning.data.rollouts.sampler import RolloutSampler
from bapo_lightning.evaluation.metrics import evaluation_metrics
from bapo_lightning.types import Problem


@dataclass(frozen=True, slots=True)
class ValidationSet:
    """A named set of problems, each answered `num_samples` times."""

    name: str
    problems: Sequence[Problem]
    num_samples: int
    seed: int  # of the sampling, apart from training's

    def evaluate(
        self, sampler: RolloutSampler, rank: int = 0, num_ranks: int = 1, device: torch.device | str = "cpu"
    ) -> dict[str, float]:
        """Returns `val/<set>/<metric>` for every metric of `evaluation.outcome`, under the engine's current
        weights. A metric that is undefined is absent.

        Every rank must call it: each answers a part of the problems, and all get the metrics of the set.
        """
        own = self.problems[rank::num_ranks]
        samples = sample_answers(replace(sampler, seed=self.seed), all_asked(own, self.num_samples))
        outcomes = [outcome_of(sample) for sample in samples]
        metrics = evaluation_metrics(self.num_samples, sync_on_compute=num_ranks > 1).to(device)
        starts = range(0, len(outcomes), self.num_samples)
        metrics.update([outcomes[first : first + self.num_samples] for first in starts])
        values = {name: float(value) for name, value in metrics.compute().items()}
        return {f"val/{self.name}/{name}": value for name, value in values.items() if not math.isnan(value)}
