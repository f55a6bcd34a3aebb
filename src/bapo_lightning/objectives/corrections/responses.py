"""Weights [N] of whole responses: all tokens of a response have the same factor, except by prefixes. A
response is whole in the table.
"""

from __future__ import annotations

from math import log
from typing import Literal

import torch
from torch import Tensor

from bapo_lightning.objectives.corrections.tokens import Cap, High, Level, Low, engine_gap, response_gap
from bapo_lightning.objectives.sequences import mean_over_sequence, sequence_sum
from bapo_lightning.objectives.token_table import TokenTable
from bapo_lightning.system.values import NonNegative


def sequence_truncated_is(
    table: TokenTable, cap: Cap = 5.0, level: Literal["product", "prefix"] = "product"
) -> Tensor:
    """Returns min(gap, cap), [N], with the gap of the whole response, the product over its tokens.

    Unlike weights of tokens, it is unbiased except for the cap. It is verl's and SkyRL's `sequence` level;
    VCPO (arXiv 2602.17616) caps at 8. At level prefix the product ends at the token itself (arXiv
    2605.07331): unbiased if A is the new policy's advantage at the token, but not for rewards at the end of
    a response, whose rest the old policy sampled.
    """
    return response_gap(table, level).clamp_max(cap)


def sequence_masked(
    table: TokenTable, low: Low = 0.5, high: High = 2.0, level: Level = "product", weigh: bool = False
) -> Tensor:
    """Returns 0 for the tokens of responses whose gap is outside [low, high], else 1 or the gap, [N].

    The product is SkyRL's `product` mask and, weighed, TRL's `sequence_mask`. The geometric mean does not
    depend on the length: SkyRL keeps [0.99, 1.01], verl (`seq_mean_k1`) [0.999, 1.001], the latter on the
    inverse of the gap.

    Args:
        table: [N] tokens.
        low: smallest gap kept, in [0, 1).
        high: largest gap kept, above 1.
        level: the gap of a response is the product over its tokens, or their geometric mean.
        weigh: kept responses have their gap as weight, not 1.
    """
    gap = response_gap(table, level)
    kept = gap if weigh else torch.ones_like(gap)
    return torch.where((gap >= low) & (gap <= high), kept, 0.0)


def outlier_mask(table: TokenTable, low: Low = 1e-4, high: High = 100.0) -> Tensor:
    """Returns 0 for responses with any token whose gap is outside [low, high], else 1, [N].

    SkyRL's `outlier_token` mask, which despite its name drops whole responses.
    """
    gap = engine_gap(table)
    outside = ((gap < low) | (gap > high)).to(gap.dtype)
    return (sequence_sum(outside, table) == 0).to(gap.dtype)


def carm(table: TokenTable, high: High = 1.2) -> Tensor:
    """Returns 0 for responses whose mean of |log pi - log pi_behaviour| exceeds log(high), else 1, [N]: CARM
    (arXiv 2610.02039).

    Geometric masks take the mean first, in which changes of both signs cancel. pi is the policy of this
    update, so that staleness counts as well.
    """
    drift = mean_over_sequence((table.logp.detach() - table.behaviour_logp).abs(), table)
    return (drift <= log(high)).to(drift.dtype)


def opsm(table: TokenTable, threshold: NonNegative = 1e-4) -> Tensor:
    """Returns 0 for the tokens of responses with A < 0 from which the policy has moved away, else 1, [N]:
    off-policy sequence masking (DeepSeek-V3.2, arXiv 2512.02556, Eq. 9).

    Moved away means that the mean of log pi_behaviour - log pi over the response exceeds the threshold, in
    nats; pi is the policy of this update, so that staleness counts as well. TRL's example of a threshold is
    0.5, slime's 1e-4.
    """
    drift = mean_over_sequence(table.behaviour_logp - table.logp.detach(), table)
    return ((table.advantage >= 0) | (drift <= threshold)).to(drift.dtype)
