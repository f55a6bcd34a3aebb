"""IPO: a trust region in probability for every token, in whichever direction it moved (prime-rl)."""

from __future__ import annotations

import torch
from torch import Tensor

from bapo_lightning.objectives.token_table import TokenTable
from bapo_lightning.system.values import Positive


def ipo(table: TokenTable, limit: Positive = 0.3, cap: Positive = 1e4) -> Tensor:
    """Returns sg(min(r, cap)) A log pi per token, [N], but 0 if |p - q| is above `limit`.

    p is the policy's probability of the token, q the proximal policy's. DPPO masks only tokens that moved
    with their advantage; here tokens that moved against it are masked as well. log r stands for log pi: they
    differ by a constant. The mean still counts masked tokens. In prime-rl `limit` is `ipo_threshold` and
    `cap` is `max_importance_ratio`.
    """
    moved = (table.logp.detach().exp() - table.proximal_logp.exp()).abs()
    weight = torch.where(moved <= limit, table.ratio.detach().clamp_max(cap), 0.0)
    return weight * table.advantage * table.log_ratio
