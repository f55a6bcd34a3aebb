"""prime-rl's default until August 2026: DPPO's mask, and a pull back to the sampling policy."""

from __future__ import annotations

import torch
from torch import Tensor

from bapo_lightning.objectives.divergence import within_divergence
from bapo_lightning.objectives.token_table import TokenTable
from bapo_lightning.system.values import Factor, Positive


def prime_rl_dppo(
    table: TokenTable, low: Positive = 0.2, high: Positive = 0.2, pull: Factor = 1e-3
) -> Tensor:
    """Returns keep r A - pull (log r)^2 per token, [N], where `keep` is DPPO's mask (arXiv 2602.04879) in
    total variation, and the second term, for all tokens, is from Kimi K2.5 (arXiv 2602.02276). prime-rl calls
    the options `dppo_mask_low`, the largest fall of a token's probability with A < 0, `dppo_mask_high`, the
    largest rise with A > 0, and `kl_tau`; the square has no factor of 1/2.
    """
    kept = within_divergence(table, low, high, "tv")
    return torch.where(kept, table.ratio, 0.0) * table.advantage - pull * table.log_ratio.square()
