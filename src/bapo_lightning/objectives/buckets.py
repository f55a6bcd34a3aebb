"""Means over tokens of similar age, or of similar depth of context."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from bapo_lightning.objectives.divergence import k3

AGES = (0, 1, 2, 4, 8, 16)  # least age of each bucket, in updates
DEPTHS = (0, 16, 64, 256, 1024, 4096, 16384)  # least depth of each bucket, in tokens of context


@torch.no_grad()
def mismatch_by_age(logp: Tensor, behaviour_logp: Tensor, age: Tensor, counted: Tensor) -> dict[str, Tensor]:
    """Returns `abs_logp_diff_age_<ages>`: the mean of |log pi - log pi_behaviour| over the tokens of a bucket
    of ages, nats, 0-dim; NaN for an empty bucket.

    At age 0 it is only the disagreement of trainer and engine; the increase with age is the distance that the
    policy has moved since. MarinSkyRL logs its quantiles by staleness.

    Args:
        logp: log-probs under the trained policy, [N] nats.
        behaviour_logp: log-probs that the engine reported with the tokens, [N] nats.
        age: updates between the version that sampled the token and the trained version, [N] int64.
        counted: true for tokens that count in a mean, [N] bool.
    """
    found = means_by_bucket((logp - behaviour_logp).abs(), age, AGES, counted)
    return {f"abs_logp_diff_age_{ages}": mean for ages, mean in found.items()}


@torch.no_grad()
def mismatch_by_depth(
    logp: Tensor, behaviour_logp: Tensor, depth: Tensor, counted: Tensor
) -> dict[str, Tensor]:
    """Returns `kl_depth_<tokens>`: the k3 estimate of KL(pi_behaviour || pi) over the tokens of a bucket of
    depths, nats per token, 0-dim; NaN for an empty bucket.

    Faults of attention, positions or caches show as a rise with depth. Source: `kl_sample_train` of Tinker's
    `rl_numerics_check`, by k1 and by half of the square there.

    Args:
        logp: log-probs under the trained policy, [N] nats.
        behaviour_logp: log-probs that the engine reported with the tokens, [N] nats.
        depth: number of tokens of prompt, feedback and response before the token, [N] int64.
        counted: true for tokens that count in a mean, [N] bool.
    """
    found = means_by_bucket(k3(logp - behaviour_logp), depth, DEPTHS, counted)
    return {f"kl_depth_{tokens}": mean for tokens, mean in found.items()}


def means_by_bucket(
    values: Tensor, keys: Tensor, starts: Sequence[int], counted: Tensor
) -> dict[str, Tensor]:
    """Returns the mean of `values` in each bucket of `keys`, by the bucket's name, 0-dim; NaN for an empty
    bucket. Waits for no device.

    Args:
        values: [N].
        keys: integers >= `starts[0]`, [N].
        starts: least key of each bucket, rising; the last bucket has no end.
        counted: true for tokens that count in a mean, [N] bool.
    """
    found = {}
    ends = [(low, high - 1) for low, high in pairwise(starts)]
    for low, last in [*ends, (starts[-1], None)]:
        inside = counted & (keys >= low)
        if last is not None:
            inside &= keys <= last
        found[bucket_name(low, last)] = values.where(inside, 0.0).sum() / inside.sum()
    return found


def bucket_name(low: int, last: int | None) -> str:
    """Returns the part of a metric's name that states the keys of a bucket."""
    if last is None:
        return f"{low}_up"
    return f"{low}" if low == last else f"{low}_to_{last}"
