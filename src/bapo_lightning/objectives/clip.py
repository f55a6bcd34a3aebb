"""PPO-clip, the objective of GRPO, DAPO and BAPO, which differ in the source of the bounds."""

from __future__ import annotations

from torch import Tensor

from bapo_lightning.objectives.surrogate import DualClip, clipped_surrogate
from bapo_lightning.objectives.token_table import TokenTable


def clip(table: TokenTable, dual_clip: DualClip | None = None) -> Tensor:
    """Returns PPO's objective within the bounds of the update, [N] (Eq. 4); see `clipped_surrogate`."""
    return clipped_surrogate(table.ratio, table.advantage, table.low, table.high, dual_clip)
