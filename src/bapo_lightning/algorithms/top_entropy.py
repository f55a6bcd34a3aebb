"""80/20: only the tokens of highest entropy have a gradient (arXiv 2506.01939)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bapo_lightning.objectives.objective import clip
from bapo_lightning.objectives.surrogate import DualClip
from bapo_lightning.objectives.token_table import TokenTable, reads
from bapo_lightning.system.values import Share

ROUNDING = 1e-9  # 0.2 * 35 is above 7
AMONG_HIGHEST = "among_highest"


def among_highest(table: TokenTable, share: Share = 0.2) -> Tensor:
    """Returns 1 for the `share` of the update's tokens with the highest entropy and 0 for all others, [N].

    The number is rounded up, and tokens with the entropy of the last one are included. TRL
    (`top_entropy_quantile`) computes the threshold for each micro-batch over all ranks.
    """
    entropy, order = table.entropy.sort(descending=True)
    count = table.count.double().gather(0, order)
    before = count.cumsum(0) - count
    belongs = (before < (share - ROUNDING) * count.sum()) & (count > 0)
    return (table.entropy >= torch.where(belongs, entropy, torch.inf).min()).to(entropy.dtype)


@dataclass(frozen=True)
class TopEntropy:
    """PPO-clip for the tokens of high entropy and 0 for all others, [N]. The mean still counts all."""

    share: Share = 0.2
    dual_clip: DualClip | None = None

    @reads("entropy", "count")
    def prepare(self, table: TokenTable) -> dict[str, Tensor]:
        """Returns `among_highest`."""
        return {AMONG_HIGHEST: among_highest(table, self.share)}

    def __call__(self, table: TokenTable) -> Tensor:
        """Returns the objective of each token, [N]."""
        return table[AMONG_HIGHEST] * clip(table, self.dual_clip)
