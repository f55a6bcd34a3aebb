"""CE-GPPO: clipped tokens keep a bounded gradient (arXiv 2509.20712)."""

from __future__ import annotations

import torch
from torch import Tensor

from bapo_lightning.objectives.surrogate import DualClip
from bapo_lightning.objectives.token_table import TokenTable
from bapo_lightning.system.values import NonNegative


def ce_gppo(
    table: TokenTable,
    low_share: NonNegative = 0.5,
    high_share: NonNegative = 1.0,
    dual_clip: DualClip | None = None,
) -> Tensor:
    """Returns r A per token, [N], but if PPO clips

        A < 0, r < low:   low_share low (r / sg(r)) A
        A > 0, r > high:  high_share high (r / sg(r)) A

    so that the gradient is a share of the gradient of a token on its bound. Shares of 0 give PPO's gradient.
    They are beta_1, 0.5 at 1.5B and 0.75 at 7B in the paper and 0.25 by default in its code, and beta_2. The
    dual clip is 10 in the paper.
    """
    one = table.ratio / table.ratio.detach()
    low = (table.advantage < 0) & (table.ratio < table.low)
    high = (table.advantage > 0) & (table.ratio > table.high)
    ratio = torch.where(low, low_share * table.low * one, table.ratio)
    # An infinite bound clips no token: its product must not become NaN in the branch that is not taken.
    bound = torch.where(high, table.high, 1.0)
    objective = torch.where(high, high_share * bound * one, ratio) * table.advantage
    if dual_clip is None:
        return objective
    return torch.where(table.advantage < 0, objective.maximum(dual_clip * table.advantage), objective)
