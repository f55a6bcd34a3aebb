"""CTPO: the ratio of a response up to a token, within bounds that widen with its place (arXiv 2605.07331)."""

from __future__ import annotations

import torch
from torch import Tensor

from bapo_lightning.objectives.sequences import sum_so_far
from bapo_lightning.objectives.surrogate import LOG_RATIO_LIMIT, clipped_surrogate
from bapo_lightning.objectives.token_table import TokenTable
from bapo_lightning.system.values import Positive


def ctpo(
    table: TokenTable, low: Positive = 0.025, high: Positive = 0.05, dual_clip: Positive = 0.05
) -> Tensor:
    """Returns min(s A, clip(s) A) per token, [N], and at least exp(dual_clip sqrt(t)) A for A < 0.

    s_t is the product of the ratios of the response's tokens 1 .. t, within exp(-low sqrt(t)) and
    exp(high sqrt(t)). Only the token's own ratio has a gradient; earlier ratios are constants.
    The square root is the rate at which the spread of log s grows if the log-ratios are independent. t counts
    trained tokens. A row of several tokens has the ratio of its last token.

    Args:
        table: [N] tokens.
        low: nats below 0 at the first token.
        high: nats above 0 at the first token.
        dual_clip: nats above 0 at the first token, beyond which tokens with A < 0 lose their gradient.
    """
    width = sum_so_far(torch.ones_like(table.ratio), table).sqrt()
    before = sum_so_far(table.log_ratio.detach(), table) - table.log_ratio.detach()
    ratio = (before + table.log_ratio).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    objective = clipped_surrogate(ratio, table.advantage, (-low * width).exp(), (high * width).exp())
    floor = (dual_clip * width).exp() * table.advantage
    return torch.where(table.advantage < 0, torch.max(objective, floor), objective)
