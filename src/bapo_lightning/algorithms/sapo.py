"""SAPO: a sigmoid of the ratio in place of clipping (arXiv 2511.20347)."""

from __future__ import annotations

import torch
from torch import Tensor

from bapo_lightning.objectives.token_table import TokenTable
from bapo_lightning.system.values import Positive


def sapo(table: TokenTable, positive: Positive = 1.0, negative: Positive = 1.05) -> Tensor:
    """Returns (4 / tau) sigmoid(tau (r - 1)) A per token, [N], whose slope at r = 1 is A; tau is `positive`
    if A > 0, else `negative`, and a larger tau fades sooner.

    ms-swift's documentation omits 4 / tau; verl, TRL, AReaL and SkyRL have it.
    """
    tau = torch.full_like(table.advantage, negative).masked_fill(table.advantage > 0, positive)
    return 4 / tau * torch.sigmoid(tau * (table.ratio - 1)) * table.advantage
