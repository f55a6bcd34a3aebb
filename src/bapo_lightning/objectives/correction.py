"""Weights that correct for the gap between the policy that sampled a token and the trainer's own.

Decoupled PPO (arXiv 2110.00641, in AReaL arXiv 2505.24298) separates two things that PPO's one ratio mixes:
how far the update may move, and where the data came from.

    L = - sum_t weight_t * w_t * min(r_t A_t, clip(r_t) A_t)

    r_t = pi / pi_proximal        w_t = correction(gap_t)        gap_t = pi_proximal / pi_behaviour

pi_proximal is the trainer's policy when the batch entered training, and pi_behaviour the one that the engine
sampled from. w_t is a constant: no gradient flows through it. The normaliser inside weight_t counts all
tokens, including those of weight 0, as in AReaL: masked tokens are left out, and no other token is scaled up
instead.
"""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor

from bapo_lightning.objectives.surrogate import importance_ratio
from bapo_lightning.objectives.token_table import TokenTable
from bapo_lightning.values import Advice

Cap = Annotated[float, Gt(0), Advice("must be positive (2.0 is usual): it is the largest weight of a token")]
Low = Annotated[float, Ge(0), Lt(1), Advice("must be in [0, 1): below 1, the weight of exact agreement")]
High = Annotated[float, Gt(1), Advice("must be above 1, the weight of exact agreement")]


def engine_gap(table: TokenTable) -> Tensor:
    """Returns pi_proximal / pi_behaviour per token, [N], limited to +-20 nats, without gradient."""
    return importance_ratio(table.proximal_logp.detach(), table.behaviour_logp)


def truncated_is(table: TokenTable, cap: Cap = 2.0) -> Tensor:
    """Returns min(gap, cap) per token: truncated importance sampling, biased only where the gap exceeds the
    cap.

    The default cap is that of verl (`rollout_is_threshold`), SkyRL and slime.

    Args:
        table: of [N] tokens.
        cap: largest weight, positive.

    Returns:
        Weights in [0, cap], [N], without gradient.

    Raises:
        ValueError: `cap` is not positive.
    """
    if not cap > 0:
        raise ValueError(
            f"cap must be positive (2.0 is usual), got {cap}: it is the largest weight of a token"
        )
    return engine_gap(table).clamp_max(cap)


def masked_is(table: TokenTable, low: Low = 0.5, high: High = 5.0) -> Tensor:
    """Returns the gap where it is in [low, high], else 0, per token: IcePop (arXiv 2510.18855).

    A token on which engine and trainer differ too much is not used at all. The default thresholds are those
    of OpenRLHF (`icepop`).

    Args:
        table: of [N] tokens.
        low: smallest weight kept, in [0, 1).
        high: largest weight kept, above 1.

    Returns:
        Weights, 0 or in [low, high], [N], without gradient.

    Raises:
        ValueError: 0 <= low < 1 < high does not hold.
    """
    if not 0 <= low < 1 < high:
        raise ValueError(
            f"the interval must hold 1, the weight of exact agreement: 0 <= low < 1 < high, got low {low} "
            f"and high {high}"
        )
    weight = engine_gap(table)
    return torch.where((weight >= low) & (weight <= high), weight, 0.0)


def unweighted(table: TokenTable) -> Tensor:
    """Returns 1 per token: the ratio is to the trainer's own log-probs, and nothing else changes.

    So do verl by default, and the authors' released code. The gap between engine and trainer is ignored.
    """
    return torch.ones_like(table.behaviour_logp)


def effective_sample_size(weight: Tensor) -> Tensor:
    """Returns (mean w)^2 / mean w^2, 0-dim: the share of tokens that would give the same variance if all had
    the same weight.

    It is 1 if all weights are equal and NaN if all are 0. Source: Kish (1965); verl's
    `rollout_is_eff_sample_size`.
    """
    return weight.mean().square() / weight.square().mean()
