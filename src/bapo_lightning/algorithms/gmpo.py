"""GMPO: the geometric mean of a response's clipped ratios (arXiv 2507.20673)."""

from __future__ import annotations

import torch
from torch import Tensor

from bapo_lightning.objectives.sequences import mean_over_sequence
from bapo_lightning.objectives.token_table import TokenTable


def gmpo(table: TokenTable) -> Tensor:
    """Returns A exp(mean of the clipped log r over the response) per token, [N].

    Each token is clipped before the mean: log r is at most log(high) if A > 0 and at least log(low) if A < 0.
    A clipped token has no gradient; the other tokens of its response keep theirs. The paper's bounds are
    exp(-0.4) and exp(0.4). verl (`geo_mean`) reads its `clip_ratio` as distances of log r from 0, and its
    default is 0.2.
    """
    log_ratio, low, high = table.log_ratio, table.low.log(), table.high.log()
    clipped = torch.where(table.advantage > 0, log_ratio.minimum(high), log_ratio.maximum(low))
    return table.advantage * mean_over_sequence(clipped, table).exp()
