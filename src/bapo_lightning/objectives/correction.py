"""Weights that correct for the gap between the policy that sampled a token and the one that the trainer holds
it against.

Decoupled PPO (arXiv 2110.00641, in AReaL arXiv 2505.24298) keeps two things apart that PPO's one ratio mixes:
how far the update may move, and where the data came from.

    L = - sum_t weight_t * w_t * min(r_t A_t, clip(r_t) A_t)        r_t = pi / pi_proximal,   w_t = correction(pi_proximal / pi_behaviour)

pi_proximal is the trainer's policy when the batch entered training, pi_behaviour what the engine really
sampled from. w_t is a
constant: no gradient flows through it. The normaliser inside weight_t counts all tokens, those of weight 0
too, as in AReaL: what is masked is left out, and nothing else is scaled up in its place.

Shapes: N tokens, or any other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bapo_lightning.objectives.surrogate import LOG_RATIO_LIMIT


def truncated_is(log_weight: Tensor, cap: float = 2.0) -> Tensor:
    """min(w, cap) per token: truncated importance sampling, biased only where w exceeds the cap.

    Token level with cap 2.0, as in verl (`rollout_is_threshold`), SkyRL and slime.

    Args:
        log_weight: log w = log pi_proximal - log pi_behaviour in nats, any shape; limited to +-20 nats like
            `importance_ratio`.
        cap: largest weight, positive.

    Returns:
        Weights in [0, cap], same shape, without gradient.

    Raises:
        ValueError: `cap` is not positive.
    """
    if not cap > 0:
        raise ValueError(
            f"cap must be positive (2.0 is usual), got {cap}: it is the largest weight of a token"
        )
    return _weight(log_weight).clamp_max(cap)


def masked_is(log_weight: Tensor, low: float = 0.5, high: float = 5.0) -> Tensor:
    """w where low <= w <= high, else 0, per token: IcePop (arXiv 2510.18855). A token that engine and trainer
    see too differently is not trusted at all.

    Thresholds [0.5, 5.0] as in OpenRLHF (`icepop`).

    Args:
        log_weight: as in `truncated_is`.
        low: smallest weight kept, in [0, 1).
        high: largest weight kept, above 1.

    Returns:
        Weights, 0 or in [low, high], same shape, without gradient.

    Raises:
        ValueError: not 0 <= low < 1 < high.
    """
    if not 0 <= low < 1 < high:
        raise ValueError(
            f"the interval must hold 1, the weight of exact agreement: 0 <= low < 1 < high, got low {low} "
            f"and high {high}"
        )
    weight = _weight(log_weight)
    return torch.where((weight >= low) & (weight <= high), weight, 0.0)


def effective_sample_size(weight: Tensor) -> Tensor:
    """(mean w)^2 / mean w^2: the share of the tokens that equally weighted ones would need for the same
    variance; 0-dim, in (0, 1].

    1 where all weights are equal, NaN where all are 0. Source: Kish (1965); verl's
    `rollout_is_eff_sample_size`.
    """
    return weight.mean().square() / weight.square().mean()


def _weight(log_weight: Tensor) -> Tensor:
    return log_weight.detach().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
