"""The gap between the trainer's policy and the policy that the engine sampled from, and weights [N] of tokens
by it, all without gradient.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor

from bapo_lightning.objectives.sequences import mean_over_sequence, sequence_sum, sum_so_far
from bapo_lightning.objectives.surrogate import LOG_RATIO_LIMIT, importance_ratio
from bapo_lightning.objectives.token_table import TokenTable
from bapo_lightning.system.values import Advice, Positive

Level = Literal["product", "geometric"]
Cap = Annotated[float, Gt(0), Advice("must be positive (2.0 is usual): it is the largest weight of a token")]
Low = Annotated[float, Ge(0), Lt(1), Advice("must be in [0, 1): below 1, the weight of exact agreement")]
High = Annotated[float, Gt(1), Advice("must be above 1, the weight of exact agreement")]
PROBABILITY_EPS = 1e-8


def engine_gap(table: TokenTable) -> Tensor:
    """Returns pi_proximal / pi_behaviour per token, [N], limited to +-20 nats, without gradient."""
    return importance_ratio(table.proximal_logp.detach(), table.behaviour_logp)


def response_gap(table: TokenTable, level: Level | Literal["prefix"] = "product") -> Tensor:
    """Returns pi_proximal / pi_behaviour of each token's whole response, [N], limited to +-20 nats: the
    product over its tokens, or their geometric mean; prefix: the product over those up to the token.
    """
    over = {"product": sequence_sum, "geometric": mean_over_sequence, "prefix": sum_so_far}[level]
    log_gap = over(table.proximal_logp.detach() - table.behaviour_logp, table)
    return log_gap.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def effective_sample_size(weight: Tensor) -> Tensor:
    """Returns (mean w)^2 / mean w^2, 0-dim: the share of tokens that would give the same variance if all had
    the same weight.

    It is 1 if all weights are equal and NaN if all are 0. Source: Kish (1965); verl's
    `rollout_is_eff_sample_size`.
    """
    return weight.mean().square() / weight.square().mean()


def truncated_is(table: TokenTable, cap: Cap = 2.0) -> Tensor:
    """Returns min(gap, cap) per token: truncated importance sampling, biased only if the gap exceeds the
    cap.

    The default cap is the same as in verl (`rollout_is_threshold`), SkyRL and slime. Raises ValueError if it
    is not positive.
    """
    if not cap > 0:
        raise ValueError(
            f"cap must be positive (2.0 is usual), got {cap}: it is the largest weight of a token"
        )
    return engine_gap(table).clamp_max(cap)


def masked_is(table: TokenTable, low: Low = 0.5, high: High = 5.0) -> Tensor:
    """Returns the gap if it is in [low, high], else 0, per token: IcePop (arXiv 2510.18855).

    A token on which engine and trainer differ too much is not used. The default thresholds are the same as in
    OpenRLHF (`icepop`). Raises ValueError unless 0 <= low < 1 < high.
    """
    if not 0 <= low < 1 < high:
        raise ValueError(
            f"the interval must hold 1, the weight of exact agreement: 0 <= low < 1 < high, got low {low} "
            f"and high {high}"
        )
    weight = engine_gap(table)
    return torch.where((weight >= low) & (weight <= high), weight, 0.0)


def kpop(table: TokenTable, threshold: Positive = 2.0) -> Tensor:
    """Returns the gap if engine and trainer agree on the token's probability, else 0: KPop.

    With p and q, its probabilities under both, the larger of the binary KL divergences KL(p || q) and
    KL(q || p), p log(p / q) + (1 - p) log((1 - p) / (1 - q)), must not exceed the threshold, in nats. AReaL
    (`binary_kl`) does the same and limits p and q to [1e-8, 1 - 1e-8]; in float32 the latter is 1, hence
    float64 here.
    """
    p, q = (
        logp.detach().double().exp().clamp(PROBABILITY_EPS, 1 - PROBABILITY_EPS)
        for logp in (table.proximal_logp, table.behaviour_logp)
    )
    shift, other_shift = (p / q).log(), ((1 - p) / (1 - q)).log()
    divergence = torch.maximum(p * shift + (1 - p) * other_shift, -q * shift - (1 - q) * other_shift)
    return torch.where(divergence <= threshold, engine_gap(table), 0.0)


def unweighted(table: TokenTable) -> Tensor:
    """Returns 1 per token: ratios are to the trainer's own log-probs; nothing else changes.

    verl's default and the authors' released code do the same. The gap of engine and trainer is ignored.
    """
    return torch.ones_like(table.behaviour_logp)
