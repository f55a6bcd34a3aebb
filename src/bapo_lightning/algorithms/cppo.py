"""CPPO (arXiv 2606.10968): a trust region, narrow at a response's start, with a budget for each prefix."""

from __future__ import annotations

import torch
from torch import Tensor

from bapo_lightning.objectives.sequences import sequence_length, sum_so_far
from bapo_lightning.objectives.token_table import TokenTable
from bapo_lightning.system.values import Positive, Share


def cppo(
    table: TokenTable, threshold: Positive = 0.15, budget: Positive = 0.015, least: Share = 0.8
) -> Tensor:
    """Returns r A per token, [N], but 0 if it moves the token's probability further away and either

        w_t d_t > threshold    or    w_1 d_1 + .. + w_t d_t > threshold + budget (w_1 + .. + w_{t-1})

    d is the change of the token's probability, |p - q|, to that under the proximal policy, and w falls from 1
    at the first token of the response to `least` at its last, in equal steps (Eq. 8 to 11). The mean still
    counts masked tokens.

    The paper adapts the budget of base models to each response, the 0.9-quantile of its d but within 0.02 and
    0.04, takes 0.015 for others, and measures d over 20 tokens and the rest; its authors' codes (UniRL, verl
    #6731) have this d and always adapt.
    """
    place, length = sum_so_far(torch.ones_like(table.ratio), table), sequence_length(table)
    fall = (1 - least) / (length - 1).clamp_min(1)
    weights_before = (place - 1) * (1 - fall * (place - 2) / 2)
    moved = table.logp.detach().exp() - table.proximal_logp.detach().exp()
    weighted = (1 - fall * (place - 1)) * moved.abs()
    within = sum_so_far(weighted, table) <= threshold + budget * weights_before
    kept = (moved * table.advantage <= 0) | (within & (weighted <= threshold))
    return torch.where(kept, table.ratio, 0.0) * table.advantage
