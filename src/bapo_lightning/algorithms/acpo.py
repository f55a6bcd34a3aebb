"""ACPO: widens bounds with the spread of ratios among tokens of similar probability (arXiv 2606.22570)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor

from bapo_lightning.objectives.surrogate import DualClip, clipped_surrogate
from bapo_lightning.objectives.token_table import TokenTable, reads
from bapo_lightning.system.values import Factor, Positive

REACH = "reach"
FLOOR = 1e-8  # of a variance, as in the authors' code
Bins = Annotated[int, Ge(1), Le(1000)]


@dataclass(frozen=True)
class ACPO:
    """PPO-clip within [1 - e, 1 + e], where e = min(base + spread std(r), most) of the token's bin.

    Bins have equal width in the current policy's probability, and std is the biased deviation of the bin's
    ratios. The authors' code (`compute_variance_adaptive_cliprange`) takes it over each micro-batch, so that
    bounds depend on the split; here it covers the update. Ratios are never negative, so that e above 1 leaves
    negative tokens without a lower bound.

    Args:
        base: e if all ratios of a bin are equal.
        spread: factor of their standard deviation.
        most: largest e.
        bins: number of bins.
        dual_clip: c of `clipped_surrogate`.
    """

    base: Positive = 0.2
    spread: Factor = 3.0
    most: Positive = 3.0
    bins: Bins = 5
    dual_clip: DualClip | None = 3.0

    @reads("logp", "ratio", "count")
    def prepare(self, table: TokenTable) -> dict[str, Tensor]:
        """Returns e of each token, [N]."""
        number = (table.logp.exp() * self.bins).long().clamp_max(self.bins - 1)
        bins = torch.arange(self.bins, device=number.device)
        member = (number.unsqueeze(-1) == bins).to(table.ratio.dtype)  # [N, bins]
        weight = member * table.count.unsqueeze(-1)
        total = weight.sum(0).clamp_min(FLOOR)
        mean = (weight * table.ratio.unsqueeze(-1)).sum(0) / total
        variance = (weight * (table.ratio.unsqueeze(-1) - mean).square()).sum(0) / total
        reach = (self.base + self.spread * (variance + FLOOR).sqrt()).clamp_max(self.most)
        return {REACH: member @ reach}

    def __call__(self, table: TokenTable) -> Tensor:
        """Returns the objective of each token, [N]."""
        reach = table[REACH]
        return clipped_surrogate(table.ratio, table.advantage, 1 - reach, 1 + reach, self.dual_clip)
