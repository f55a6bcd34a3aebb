"""How far a token's probability has moved, for objectives that mask by it instead of the ratio."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from bapo_lightning.objectives.token_table import TokenTable

LEAST_REST = 1e-8  # of probability outside the token, as in verl: a certain one has an infinite divergence


def within_divergence(table: TokenTable, low: float, high: float, divergence: Literal["tv", "kl"]) -> Tensor:
    """Returns whether each token keeps its gradient, [N] bool: its probability has not moved away from
    that of the policy that the ratio is taken to by more than a divergence of two outcomes, this token and
    any other (arXiv 2602.04879, Eq. 13, 14).

    Args:
        table: [N] tokens.
        low: largest divergence of a token with A < 0 whose probability has fallen.
        high: largest divergence of a token with A > 0 whose probability has risen.
        divergence: tv is |p - q|; kl is q log(q / p) + (1 - q) log((1 - q) / (1 - p)).
    """
    p, q = table.logp.detach().exp(), table.proximal_logp.detach().exp()
    moved = p - q
    if divergence == "tv":
        found = moved.abs()
    else:
        rest = torch.log((1 - q + LEAST_REST) / (1 - p + LEAST_REST))
        found = (1 - q) * rest - q * table.log_ratio.detach()
    far = torch.where(table.advantage > 0, (moved > 0) & (found > high), (moved < 0) & (found > low))
    return ~far
