"""Clip-Cov: some tokens of high covariance get no gradient (arXiv 2505.22617)."""

from __future__ import annotations

from torch import Tensor

from bapo_lightning.objectives.picks import covariance, first_of, random_order
from bapo_lightning.objectives.surrogate import clipped_surrogate
from bapo_lightning.objectives.token_table import TokenTable, needs
from bapo_lightning.values import Share


@needs("sequence", "position", "age", "behaviour_logp", "count", "logp", "advantage", "ratio", "low", "high")
def kept(table: TokenTable, share: Share = 2e-4, low: float = 1.0, high: float = 5.0) -> Tensor:
    """Returns 0 for the picked tokens of the update and 1 for all others, [N].

    `share` of all tokens, at least one, are picked at random among the unclipped ones whose covariance is
    between `low` and `high`. verl picks them, and takes the means of the covariance, in each micro-batch.

    Args:
        table: whole update, with bounds, [N].
        share: share of the tokens to pick.
        low: covariance above which a token may be picked.
        high: covariance below which it may.
    """
    value = covariance(table)
    clipped = table.ratio.clamp(table.low, table.high) * table.advantage < table.ratio * table.advantage
    return 1 - first_of(random_order(table), ~clipped & (value > low) & (value < high), share, table)


def clip_cov(table: TokenTable) -> Tensor:
    """Returns PPO-clip per token, and 0 for the picked ones, [N].

    Args:
        table: [N] tokens, with bounds; its statistic is that of `kept`.
    """
    return table.statistic * clipped_surrogate(table.ratio, table.advantage, table.low, table.high)
