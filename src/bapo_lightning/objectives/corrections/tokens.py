"""Weights of single tokens."""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor

from bapo_lightning.objectives.corrections.gap import engine_gap
from bapo_lightning.objectives.token_table import TokenTable
from bapo_lightning.values import Advice, Positive

Cap = Annotated[float, Gt(0), Advice("must be positive (2.0 is usual): it is the largest weight of a token")]
Low = Annotated[float, Ge(0), Lt(1), Advice("must be in [0, 1): below 1, the weight of exact agreement")]
High = Annotated[float, Gt(1), Advice("must be above 1, the weight of exact agreement")]
PROBABILITY_EPS = 1e-8


def truncated_is(table: TokenTable, cap: Cap = 2.0) -> Tensor:
    """Returns min(gap, cap) per token: truncated importance sampling, biased only where the gap exceeds the
    cap.

    The default cap is that of verl (`rollout_is_threshold`), SkyRL and slime.

    Args:
        table: [N] tokens.
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
        table: [N] tokens.
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


def kpop(table: TokenTable, threshold: Positive = 2.0) -> Tensor:
    """Returns the gap where engine and trainer agree on whether it is this token, else 0: KPop.

    With p and q, its probabilities by both, the larger of the binary KL divergences KL(p || q) and
    KL(q || p), p log(p / q) + (1 - p) log((1 - p) / (1 - q)), must not exceed the threshold. So in AReaL
    (`binary_kl`), where p and q are limited to [1e-8, 1 - 1e-8], too; in float32 the latter is 1, hence
    float64 here.

    Args:
        table: [N] tokens.
        threshold: largest divergence, nats.
    """
    p, q = (
        logp.detach().double().exp().clamp(PROBABILITY_EPS, 1 - PROBABILITY_EPS)
        for logp in (table.proximal_logp, table.behaviour_logp)
    )
    shift, other_shift = (p / q).log(), ((1 - p) / (1 - q)).log()
    divergence = torch.maximum(p * shift + (1 - p) * other_shift, -q * shift - (1 - q) * other_shift)
    return torch.where(divergence <= threshold, engine_gap(table), 0.0)


def unweighted(table: TokenTable) -> Tensor:
    """Returns 1 per token: the ratio is to the trainer's own log-probs, and nothing else changes.

    So do verl by default, and the authors' released code. The gap between engine and trainer is ignored.
    """
    return torch.ones_like(table.behaviour_logp)
