"""SAT: narrows the bounds of tokens whose ratios are farthest from 1 (arXiv 2607.18722)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Gt, Le
from torch import Tensor

from bapo_lightning.objectives.surrogate import DualClip, clipped_surrogate
from bapo_lightning.objectives.token_table import TokenTable, reads
from bapo_lightning.system.values import Share

CONTRACTION = "contraction"
ROUNDING = 1e-9  # 0.9 * 10 is below 9
Power = Annotated[float, Gt(0), Le(100)]


@dataclass(frozen=True)
class SAT:
    """PPO-clip that keeps its bounds except for the `tail` of tokens with the largest d = |log r|. On the
    side to which r has moved, the distance of such a token's bound from 1 is multiplied by

    q^k / (q^k + d^k)

    q is the largest d outside of the tail, so that the factor is 1/2 at q. The bound on the other side stays,
    and with it every gradient that pulls r back to 1. The authors compute q for each micro-batch; here it is
    computed for the update.

    Args:
        tail: share of the tokens.
        power: k.
        dual_clip: c of `clipped_surrogate`.
    """

    tail: Share = 0.1
    power: Power = 2.0
    dual_clip: DualClip | None = None

    @reads("log_ratio", "count")
    def prepare(self, table: TokenTable) -> dict[str, Tensor]:
        """Returns the factor of each token, [N]."""
        distance = table.log_ratio.abs()
        ordered, order = distance.sort()
        up_to = table.count.gather(0, order).double().cumsum(0)
        reached = up_to >= (1 - self.tail - ROUNDING) * up_to[-1]
        edge = torch.where(reached, ordered, torch.inf).min()
        factor = 1 / (1 + (distance / edge) ** self.power)
        return {CONTRACTION: torch.where((distance > edge) & (edge > 0), factor, 1.0)}

    def __call__(self, table: TokenTable) -> Tensor:
        """Returns the objective of each token, [N]."""
        factor, moved = table[CONTRACTION], table.log_ratio.detach()
        low = 1 - (1 - table.low) * torch.where(moved < 0, factor, 1.0)
        high = 1 + (table.high - 1) * torch.where(moved > 0, factor, 1.0)
        return clipped_surrogate(table.ratio, table.advantage, low, high, self.dual_clip)
