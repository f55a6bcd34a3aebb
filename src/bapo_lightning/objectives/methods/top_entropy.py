"""80/20: only the tokens of highest entropy have a gradient (arXiv 2506.01939)."""

from __future__ import annotations

import torch
from torch import Tensor

from bapo_lightning.objectives.surrogate import DualClip, clipped_surrogate
from bapo_lightning.objectives.token_table import TokenTable, needs
from bapo_lightning.values import Share

ROUNDING = 1e-9  # 0.2 * 35 is above 7


@needs("entropy", "count")
def among_highest(table: TokenTable, share: Share = 0.2) -> Tensor:
    """Returns 1 for the `share` of the update's tokens with the highest entropy and 0 for all others, [N].

    The number is rounded up, and tokens as uncertain as the last one belong to them. TRL
    (`top_entropy_quantile`) takes the threshold of each micro-batch over all ranks.

    Args:
        table: whole update, [N].
        share: share of the tokens that keep their gradient.
    """
    entropy, order = table.entropy.sort(descending=True)
    count = table.count.double().gather(0, order)
    before = count.cumsum(0) - count
    belongs = (before < (share - ROUNDING) * count.sum()) & (count > 0)
    return (table.entropy >= torch.where(belongs, entropy, torch.inf).min()).to(entropy.dtype)


def top_entropy(table: TokenTable, dual_clip: DualClip | None = None) -> Tensor:
    """Returns PPO-clip for the tokens of high entropy and 0 for all others, [N]. The mean still counts all.

    Args:
        table: [N] tokens, with bounds; its statistic is that of `among_highest`.
        dual_clip: see `clipped_surrogate`.
    """
    return table.statistic * clipped_surrogate(table.ratio, table.advantage, table.low, table.high, dual_clip)
