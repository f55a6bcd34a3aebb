"""Log-probs of a fresh rollout batch by the trainer's own weights, taken once, when the batch enters
training.

They are the denominator of decoupled PPO's ratio, and they tell how far engine and trainer disagree.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from bapo_lightning.objectives.mismatch import mismatch
from bapo_lightning.types import Group, Rollout, Sample


def with_proximal_logprobs(
    groups: Sequence[Group], score: Callable[[Sequence[Rollout]], list[array[float]]], version: int
) -> tuple[list[Group], dict[str, float]]:
    """The same groups with proximal log-probs in their samples, and what was measured meanwhile.

    Args:
        groups: a rollout batch.
        score: log-probs in nats of each rollout's response tokens by the trainer, in order.
        version: policy version of the weights behind `score`.

    Returns:
        The groups, and the metrics `mismatch/*` (over the batch's tokens of age 0; absent if there are none)
        and `time/proximal_seconds`.
    """
    start = time.perf_counter()
    logprobs = iter(score([sample.rollout for group in groups for sample in group.samples]))
    scored = [
        replace(
            group,
            samples=tuple(replace(sample, proximal_logprobs=next(logprobs)) for sample in group.samples),
        )
        for group in groups
    ]
    measured = fresh_mismatch([sample for group in scored for sample in group.samples], version)
    return scored, measured | {"time/proximal_seconds": time.perf_counter() - start}


def fresh_mismatch(samples: Sequence[Sample], version: int) -> dict[str, float]:
    """`mismatch/*` over the tokens that policy `version` itself sampled: the difference of older ones is
    staleness, not disagreement.
    """
    proximal, behaviour = array("f"), array("f")
    for sample in samples:
        first = 0
        for segment in sample.rollout.segments:
            end = first + len(segment.token_ids)
            if segment.version == version and sample.proximal_logprobs is not None:
                proximal.extend(sample.proximal_logprobs[first:end])
                behaviour.extend(segment.logprobs)
            first = end
    if not proximal:
        return {}
    found = mismatch(
        torch.frombuffer(proximal, dtype=torch.float32), torch.frombuffer(behaviour, dtype=torch.float32)
    )
    return {f"mismatch/{name}": float(value) for name, value in found.items()}
