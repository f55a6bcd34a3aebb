"""Answers to a held-out set, sampled by the rollout engine and judged by the same reward as in training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from bapo_lightning.data.rollout_sampler import Generate, RolloutSampler
from bapo_lightning.evaluation import avg_at_k, pass_at_k
from bapo_lightning.types import Problem, ScoreStatus


@dataclass(frozen=True, slots=True)
class ValidationSet:
    """A named set of problems, each answered `num_samples` times."""

    name: str
    problems: Sequence[Problem]
    num_samples: int
    seed: int  # of the draws, apart from training's

    def evaluate(self, sampler: RolloutSampler, generate: Generate) -> dict[str, float]:
        """`val/<set>/avg@k`, `val/<set>/pass@k` and the mean response length, under the engine's current weights."""
        groups = replace(sampler, seed=self.seed).sample_groups(self.problems, self.num_samples, generate)
        correct = [[sample.score.status is ScoreStatus.CORRECT for sample in group.samples] for group in groups]
        k = self.num_samples
        return {
            f"val/{self.name}/avg@{k}": fmean(avg_at_k(verdicts) for verdicts in correct),
            f"val/{self.name}/pass@{k}": fmean(pass_at_k(k, sum(verdicts), k) for verdicts in correct),
            f"val/{self.name}/response_length": fmean(sample.rollout.length for group in groups for sample in group.samples),
        }
