"""Clip-Cov: some tokens of high covariance get no gradient (arXiv 2505.22617)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bapo_lightning.objectives.picks import ORDERED_BY, first_of, random_order, unclipped_between
from bapo_lightning.objectives.surrogate import clipped_surrogate
from bapo_lightning.objectives.token_table import TokenTable, reads
from bapo_lightning.system.values import Share

KEPT = "kept"


@dataclass(frozen=True)
class ClipCov:
    """PPO-clip per token, and 0 for the picked tokens, [N].

    `share` of all tokens of the update, at least one, are picked at random among unclipped tokens whose
    covariance is between `low` and `high`. verl picks them, and computes the means of the covariance, in each
    micro-batch. The bounds of the table are [0, 2] in the authors' scripts, [0.8, 1.2] in verl's function.
    """

    share: Share = 2e-4
    low: float = 1.0
    high: float = 5.0

    @reads(*ORDERED_BY, "count", "logp", "advantage", "ratio", "low", "high")
    def prepare(self, table: TokenTable) -> dict[str, Tensor]:
        """Returns 0 for the picked tokens and 1 for all others, [N]."""
        candidates = unclipped_between(table, table.count, self.low, self.high)
        return {KEPT: 1 - first_of(random_order(table), candidates, self.share, table.count)}

    def __call__(self, table: TokenTable) -> Tensor:
        """Returns the objective of each token, [N]."""
        return table[KEPT] * clipped_surrogate(table.ratio, table.advantage, table.low, table.high)
