"""Scored answers to held-out problems: what validation during training and the evaluation of a checkpoint
have in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bapo_lightning.data.rollouts.sampler import Generate, RolloutSampler
from bapo_lightning.evaluation.outcome import SampleOutcome
from bapo_lightning.rollout.engine import GenerationRequest
from bapo_lightning.rollout.seeds import request_seed
from bapo_lightning.types import FinishReason, Problem, Rollout, Sample

# In the seeds, in place of a policy version: the same draws for every checkpoint, so that two of them differ
# by their weights alone.
_ANY_VERSION = 0

Asked = tuple[Problem, int]  # a problem and the number of one of its k samples


def all_asked(problems: Iterable[Problem], num_samples: int) -> list[Asked]:
    """Every sample of every problem, problem by problem."""
    return [(problem, number) for problem in problems for number in range(num_samples)]


def sample_answers(sampler: RolloutSampler, asked: Sequence[Asked], generate: Generate) -> list[Sample]:
    """One scored sample for each of `asked`, in order, by the engine's present weights. Draws depend on seed,
    problem and number alone.
    """
    if not asked:
        return []
    prompts = {problem: sampler.encode_prompt(problem) for problem, _ in asked}
    requests = [
        GenerationRequest(
            prompts[problem],
            sampler.max_new_tokens,
            request_seed(sampler.seed, _ANY_VERSION, problem.id, number),
        )
        for problem, number in asked
    ]
    rollouts = [
        Rollout(request.token_ids, (generation.segment,), generation.finish)
        for request, generation in zip(requests, generate(requests), strict=True)
    ]
    completions = [sampler.complete(rollout) for rollout in rollouts]
    scores = sampler.reward([problem for problem, _ in asked], completions)
    return [
        Sample(*parts, reward=parts[2].value) for parts in zip(rollouts, completions, scores, strict=True)
    ]


def outcome_of(sample: Sample) -> SampleOutcome:
    """What the metrics need to know of it."""
    is_cut = sample.completion.finish is FinishReason.LENGTH
    return SampleOutcome(sample.score.status, sample.score.answer, sample.completion.num_tokens, is_cut)
