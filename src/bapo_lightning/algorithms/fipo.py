"""FIPO: a token counts more if the rest of its response became likelier (arXiv 2603.19835)."""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Gt
from torch import Tensor

from bapo_lightning.objectives.sequences import discounted_sum_ahead
from bapo_lightning.objectives.surrogate import DualClip, clipped_surrogate
from bapo_lightning.objectives.token_table import TokenTable
from bapo_lightning.system.values import NonNegative, Positive


def fipo(
    table: TokenTable,
    half_life: Positive = 32.0,
    least: NonNegative = 1.0,
    most: Positive = 1.2,
    dual_clip: DualClip | None = 10.0,
    safe_ratio: Annotated[float, Gt(1)] = 4.0,
) -> Tensor:
    """Returns sg(f) times PPO-clip per token, [N], with f = clip(exp(sum_{k >= t} 0.5^((k - t) / half_life)
    log r_k), least, most).

    Tokens with r above `dual_clip` do not count in the sum. If A < 0 and r > `safe_ratio`, f is limited to
    [0.8, 1], so that no such token counts more; 4 is ms-swift's value. `least` 0.8 gives the paper's
    two-sided variant.
    """
    change, ratio = table.log_ratio.detach(), table.ratio.detach()
    if dual_clip is not None:
        change = torch.where(ratio > dual_clip, 0.0, change)
    influence = discounted_sum_ahead(change, table, 0.5 ** (1 / half_life)).exp().clamp(least, most)
    unsafe = (table.advantage < 0) & (ratio > safe_ratio)
    influence = torch.where(unsafe, influence.clamp(0.8, 1), influence)
    return influence * clipped_surrogate(
        ratio=table.ratio, advantage=table.advantage, low=table.low, high=table.high, dual_clip=dual_clip
    )
