"""Scored answers to held-out problems, for validation and for the evaluation of a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from bapo_lightning.data.rollouts.running_group import RunningGroup
from bapo_lightning.data.rollouts.sampler import RolloutSampler
from bapo_lightning.objectives.answer_metrics import evaluation_metrics
from bapo_lightning.objectives.outcome import SampleOutcome
from bapo_lightning.rollout.engine import GenerationRequest, request_seed
from bapo_lightning.types import FinishReason, Problem, Rollout, Sample, WorkItem

# Stands for the policy version in the seeds: every checkpoint gets the same random numbers, so that two
# checkpoints differ only by their weights.
_ANY_VERSION = 0

Asked = tuple[Problem, int]  # a problem and the number of one of its k samples


def all_samples(problems: Iterable[Problem], num_samples: int) -> list[Asked]:
    """Every sample of every problem, problem by problem."""
    return [(problem, number) for problem in problems for number in range(num_samples)]


def sample_answers(sampler: RolloutSampler, items: Sequence[Asked]) -> list[Sample]:
    """Returns one scored sample for each of `items`, in order, under the engine's present weights. Its tokens
    depend only on these weights, the seed, the problem and the number.
    """
    if not items:
        return []
    prompts = {problem: sampler.encode_prompt(problem) for problem, _ in items}
    requests = [
        GenerationRequest(
            prompts[problem],
            sampler.max_new_tokens,
            request_seed(sampler.seed, _ANY_VERSION, problem.id, number),
            group,
        )
        for group, (problem, number) in enumerate(items)
    ]
    groups = [RunningGroup(WorkItem(problem, 0), [Rollout(prompts[problem])]) for problem, _ in items]
    continued = sampler.continued(requests, groups)
    rollouts = [rollout if rollout.finish else rollout.cut() for _, rollout in sorted(continued.items())]
    return sampler.judge([problem for problem, _ in items], rollouts)


def outcome_of(sample: Sample) -> SampleOutcome:
    """Returns a sample in the form that the metrics read."""
    is_cut = sample.rollout.finish is FinishReason.LENGTH
    return SampleOutcome(sample.score.status, sample.score.answer, sample.rollout.length, is_cut)


@dataclass(frozen=True, slots=True)
class ValidationSet:
    """A named set of held-out problems, each answered `num_samples` times by the rollout engine."""

    name: str
    problems: Sequence[Problem]
    num_samples: int
    seed: int  # of sampling; training has its own

    def answers(self, sampler: RolloutSampler) -> list[Sample]:
        """Returns the scored answers under the engine's current weights, problem by problem."""
        items = all_samples(self.problems, self.num_samples)
        return sample_answers(replace(sampler, seed=self.seed), items)

    def metrics(self, answers: Sequence[Sample]) -> dict[str, float]:
        """Returns `val/<set>/<metric>` for every metric of `evaluation.outcome` that is defined."""
        outcomes = [outcome_of(answer) for answer in answers]
        starts = range(0, len(outcomes), self.num_samples)
        # Only one rank has the answers; a sync would wait for the other ranks.
        metrics = evaluation_metrics(self.num_samples, sync_on_compute=False)
        metrics.update([outcomes[first : first + self.num_samples] for first in starts])
        values = {name: float(value) for name, value in metrics.compute().items()}
        return {f"val/{self.name}/{name}": value for name, value in values.items() if not math.isnan(value)}
