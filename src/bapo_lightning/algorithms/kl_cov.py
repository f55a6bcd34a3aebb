"""KL-Cov: tokens of the highest covariance pay for moving (arXiv 2505.22617)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bapo_lightning.objectives.picks import ORDERED_BY, covariance, first_of, random_order
from bapo_lightning.objectives.token_table import TokenTable, reads
from bapo_lightning.system.values import Factor, Share

PICKED = "picked"


@dataclass(frozen=True)
class KLCov:
    """r A per token, minus coefficient * |log r| for the picked tokens, [N]; without bounds.

    The tokens of the highest covariance in the update are picked; verl picks them in each micro-batch.
    |log r| has a kink at a ratio of one: for a picked fresh token rounding decides the sign of its gradient,
    so that runs on other numbers of ranks differ. The coefficient is beta: 1 in the paper and the authors'
    scripts, 0.1 in verl's `ppo_kl_coef`. The authors' share is 2e-4 at 32B and 2e-3 at 7B.
    """

    coefficient: Factor = 1.0
    share: Share = 2e-4

    @reads(*ORDERED_BY, "count", "logp", "advantage")
    def prepare(self, table: TokenTable) -> dict[str, Tensor]:
        """Returns 1 for the picked tokens and 0 for all others, [N]."""
        value, order = covariance(table, table.count), random_order(table)  # orders equal values
        order = order.gather(0, value.gather(0, order).argsort(descending=True, stable=True))
        return {PICKED: first_of(order, table.count > 0, self.share, table.count)}

    def __call__(self, table: TokenTable) -> Tensor:
        """Returns the objective of each token, [N]."""
        return table.ratio * table.advantage - self.coefficient * table[PICKED] * table.log_ratio.abs()
