"""Distances between policies: estimates of KL(pi_behaviour || pi), changes of a token's probability, and
their means over tokens of similar age or depth of context.

Source of k3: J. Schulman, "Approximating KL Divergence", http://joschu.net/blog/kl-approx.html, with p = pi
and q = pi_behaviour, from which the tokens were sampled. The estimate is the mean over the tokens. The other
direction, KL(pi || pi_behaviour), would need tokens sampled from pi.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from bapo_lightning.objectives.surrogate import importance_ratio
from bapo_lightning.objectives.token_table import TokenTable

LEAST_REST = 1e-8  # least probability of other tokens, as in verl: with 0 the divergence is infinite


def k3(log_ratio: Tensor) -> Tensor:
    """Returns (r - 1) - log r in nats: never negative, unbiased, of low variance.

    Args:
        log_ratio: log r = log pi(y) - log pi_behaviour(y) in nats, any shape; the result has the same.
    """
    return torch.expm1(log_ratio) - log_ratio  # expm1: for r close to 1, r - 1 would lose all digits


@torch.no_grad()
def mismatch(logp: Tensor, behaviour_logp: Tensor) -> dict[str, Tensor]:
    """Returns statistics of the disagreement between trainer and rollout engine about tokens that the same
    weights sampled and scored, d = log pi_trainer - log pi_engine, by name, 0-dim.

    abs_logp_diff_mean, abs_logp_diff_max: mean and maximum of |d|, nats.
    logp_diff_mean: mean of d, nats. Its expectation is -KL(engine || trainer) <= 0 if the engine reports the
        distribution that it samples from. A value clearly above 0 shows that it reports another distribution,
        such as log-probs before the temperature.
    ratio_max: largest exp(d).
    kl: k3 estimate of KL(engine || trainer), nats.

    Args:
        logp: the trainer's log-probs of the sampled tokens, at the sampling temperature, [N] nats, N >= 1.
        behaviour_logp: the engine's log-probs, [N] nats.
    """
    difference = logp - behaviour_logp
    return {
        "abs_logp_diff_mean": difference.abs().mean(),
        "abs_logp_diff_max": difference.abs().max(),
        "logp_diff_mean": difference.mean(),
        "ratio_max": difference.exp().max(),
        "kl": k3(difference).mean(),
    }


@torch.no_grad()
def ratio_spread(logp: Tensor, behaviour_logp: Tensor, counted: Tensor) -> dict[str, Tensor]:
    """Returns measures of how unequal the ratios w = pi / pi_behaviour are before corrections and bounds, by
    name, 0-dim; NaN if no token is counted.

    effective_sample_size: (sum w)^2 / (N sum w^2), the share of the N tokens that would give the same
        variance if all ratios were equal. Source: Kish (1965); `correction/effective_sample_size` is the same
        for a correction's weights.
    chi_square: mean of (w - 1)^2, an estimate of chi^2(pi || pi_behaviour) = E[w^2] - 1 in squared ratios.
        It has the same expectation as mean w^2 - 1 (verl), and is never negative. It is 0 for equal policies
        and at most epsilon^2 if all ratios lie within 1 +- epsilon.

    Args:
        logp: log-probs under the policy, [N] nats.
        behaviour_logp: log-probs under the distribution that the tokens were sampled from, [N] nats.
        counted: true for tokens that were sampled from it, [N] bool.
    """
    ratio, number = importance_ratio(logp, behaviour_logp), counted.sum()
    total = ratio.where(counted, 0.0).sum()
    squares = ratio.square().where(counted, 0.0).sum()
    return {
        "effective_sample_size": total.square() / (number * squares),
        "chi_square": (ratio - 1).square().where(counted, 0.0).sum() / number,
    }


def within_divergence(table: TokenTable, low: float, high: float, divergence: Literal["tv", "kl"]) -> Tensor:
    """Returns whether each token keeps its gradient, [N] bool: its probability has not moved away from its
    probability under the proximal policy by more than a divergence of two outcomes, this token and any other
    (arXiv 2602.04879, Eq. 13, 14).

    Args:
        table: [N] tokens.
        low: largest divergence of a token with A < 0 whose probability has fallen.
        high: largest divergence of a token with A > 0 whose probability has risen.
        divergence: tv is |p - q|; kl is q log(q / p) + (1 - q) log((1 - q) / (1 - p)).
    """
    p, q = table.logp.detach().exp(), table.proximal_logp.detach().exp()
    moved = p - q
    if divergence == "tv":
        distance = moved.abs()
    else:
        rest = torch.log((1 - q + LEAST_REST) / (1 - p + LEAST_REST))
        distance = (1 - q) * rest - q * table.log_ratio.detach()
    far = torch.where(table.advantage > 0, (moved > 0) & (distance > high), (moved < 0) & (distance > low))
    return ~far


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
    means = means_by_bucket((logp - behaviour_logp).abs(), age, AGES, counted)
    return {f"abs_logp_diff_age_{ages}": mean for ages, mean in means.items()}


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
    means = means_by_bucket(k3(logp - behaviour_logp), depth, DEPTHS, counted)
    return {f"kl_depth_{tokens}": mean for tokens, mean in means.items()}


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
    means = {}
    ends = [(low, high - 1) for low, high in pairwise(starts)]
    for low, last in [*ends, (starts[-1], None)]:
        inside = counted & (keys >= low)
        if last is not None:
            inside &= keys <= last
        means[bucket_name(low, last)] = values.where(inside, 0.0).sum() / inside.sum()
    return means


def bucket_name(low: int, last: int | None) -> str:
    """Returns the part of a metric's name that states the keys of a bucket."""
    if last is None:
        return f"{low}_up"
    return f"{low}" if low == last else f"{low}_to_{last}"
