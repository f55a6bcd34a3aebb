"""KL-Cov: tokens of the highest covariance pay for moving (arXiv 2505.22617)."""

from __future__ import annotations

from torch import Tensor

from bapo_lightning.objectives.picks import covariance, first_of, random_order
from bapo_lightning.objectives.token_table import TokenTable, needs
from bapo_lightning.values import NonNegative, Share


@needs("sequence", "position", "age", "behaviour_logp", "count", "logp", "advantage")
def picked(table: TokenTable, share: Share = 2e-4) -> Tensor:
    """Returns 1 for the tokens of the highest covariance in the update and 0 for all others, [N].

    verl picks them in each micro-batch.

    Args:
        table: whole update, [N].
        share: share of the tokens to pick, at least one.
    """
    value, order = covariance(table), random_order(table)  # which orders equal ones
    order = order.gather(0, value.gather(0, order).argsort(descending=True, stable=True))
    return first_of(order, table.count > 0, share, table)


def kl_cov(table: TokenTable, coefficient: NonNegative = 1.0) -> Tensor:
    """Returns r A per token, less coefficient * |log r| for the picked ones, [N]; there are no bounds.

    |log r| has a kink at a ratio of one: for a picked fresh token rounding decides the sign of its gradient,
    so that runs on other numbers of ranks differ.

    Args:
        table: [N] tokens; its statistic is that of `picked`.
        coefficient: beta; 1 in the paper, 0.1 in verl's `ppo_kl_coef`.
    """
    return table.ratio * table.advantage - coefficient * table.statistic * table.log_ratio.abs()
