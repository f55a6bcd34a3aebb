"""Scores of a rollout batch that the trainer computes itself, once, when the batch enters training.

Log-probs under its own weights are the denominator of decoupled PPO's ratio, and they measure how far engine
and trainer disagree. Entropies and mean log-probs tell an objective how the policy has changed since, and
log-probs under the weights that the run began with how it has changed in all.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from dataclasses import replace

import torch

from bapo_lightning.objectives.divergence import mismatch
from bapo_lightning.phases import phase
from bapo_lightning.rollout.weight_sync import ScoringWeightSource
from bapo_lightning.types import Group, Sample

PROXIMAL = "proximal_logp"
# Columns of the token table by the policy's name for a score.
COLUMNS = {"logp": PROXIMAL, "entropy": "entry_entropy", "mean_logp": "entry_mean_logp"}


@phase("recomputing log-probs")
def with_entry_scores(
    groups: Sequence[Group],
    policy: ScoringWeightSource,
    token_budget: int,
    version: int,
    names: Sequence[str] = ("logp",),
) -> tuple[list[Group], dict[str, float]]:
    """Adds scores to the samples. Those of an expert get no proximal log-probs, because their ratio is to 1;
    entropies and mean log-probs are those of the policy at the expert's tokens.

    Args:
        groups: groups of a rollout batch.
        policy: the trainer's policy.
        token_budget: padded tokens that pass through the policy at once.
        version: policy version.
        names: scores to add, of `COLUMNS`.

    Returns:
        The groups, and the metrics `mismatch/*` (over the batch's tokens of age 0; absent if there are none)
        and `time/proximal_seconds`.
    """
    start = time.perf_counter()
    others = [name for name in names if name != "logp"]
    rollouts = [sample.rollout for group in groups for sample in group.samples]
    scored_at_once = [rollout for rollout in rollouts if others or rollout.aging_segments]
    scores = iter(policy.response_scores(scored_at_once, token_budget, names))

    def scored_sample(sample: Sample) -> Sample:
        ages = bool(sample.rollout.aging_segments)
        if not others and not ages:
            return sample
        found = dict(zip((COLUMNS[name] for name in names), next(scores), strict=True))
        if not ages:
            found.pop(PROXIMAL, None)
        return replace(sample, scores={**sample.scores, **found})

    scored = [replace(group, samples=tuple(map(scored_sample, group.samples))) for group in groups]
    measured = fresh_mismatch([sample for group in scored for sample in group.samples], version)
    return scored, measured | {"time/proximal_seconds": time.perf_counter() - start}


@phase("scoring with the first weights")
def with_reference_logprobs(
    groups: Sequence[Group], policy: ScoringWeightSource, token_budget: int
) -> tuple[list[Group], dict[str, float]]:
    """Adds reference log-probs to the samples, whoever wrote them.

    Args:
        groups: groups of a rollout batch that enter training for the first time.
        policy: the trainer's policy.
        token_budget: padded tokens that pass through the policy at once.

    Returns:
        The groups, and the metric `time/reference_seconds`.
    """
    start = time.perf_counter()
    rollouts = [sample.rollout for group in groups for sample in group.samples]
    logprobs = iter(policy.reference_logprobs(rollouts, token_budget))
    scored = [
        replace(
            group,
            samples=tuple(
                replace(sample, scores={**sample.scores, "reference_logp": next(logprobs)})
                for sample in group.samples
            ),
        )
        for group in groups
    ]
    return scored, {"time/reference_seconds": time.perf_counter() - start}


def fresh_mismatch(samples: Sequence[Sample], version: int) -> dict[str, float]:
    """Metrics `mismatch/*` over the tokens that policy `version` itself sampled: the difference of older ones
    is staleness, not disagreement.
    """
    proximal, behaviour = array("f"), array("f")
    for sample in samples:
        if not sample.rollout.is_sampled:
            continue
        first = 0
        for segment in sample.rollout.sampled_segments:
            end = first + len(segment.token_ids)
            if segment.version == version and PROXIMAL in sample.scores:
                proximal.extend(sample.scores[PROXIMAL][first:end])
                behaviour.extend(segment.logprobs)
            first = end
    if not proximal:
        return {}
    found = mismatch(
        torch.frombuffer(proximal, dtype=torch.float32), torch.frombuffer(behaviour, dtype=torch.float32)
    )
    return {f"mismatch/{name}": float(value) for name, value in found.items()}
