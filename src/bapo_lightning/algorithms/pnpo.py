"""PNPO: weighs every token by the geometric mean of the ratios up to it (arXiv 2608.01418)."""

from __future__ import annotations

import torch
from torch import Tensor

from bapo_lightning.objectives.corrections.tokens import High, Low
from bapo_lightning.objectives.sequences import sum_so_far
from bapo_lightning.objectives.token_table import TokenTable


def pnpo(table: TokenTable, low: Low = 0.5, high: High = 2.0) -> Tensor:
    """Returns sg(w) A log pi per token, [N], but 0 if w is below `low` or above `high`.

    w_t = exp(mean of log r over the response's tokens 1 .. t)

    The exact correction of a token is the product of these ratios, whose range grows with t; their geometric
    mean still depends on the whole prefix. log r stands for log pi: they differ by a constant. The mean still
    counts rejected tokens. A row of several tokens has the weight of its last token.
    """
    length = sum_so_far(torch.ones_like(table.ratio), table)
    weight = (sum_so_far(table.log_ratio.detach(), table) / length).exp()
    kept = (weight >= low) & (weight <= high)
    return torch.where(kept, weight, 0.0) * table.advantage * table.log_ratio
