"""Contributions of a token table to the gradient, as BAPO balances them and as monitors show them."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from bapo_lightning.objectives.bounds import Kind, contribution_curves, positive_contribution
from bapo_lightning.objectives.token_table import TokenTable, reads

ContributionWeight = Literal["rollout_prob", "none"]


def contribution_weight(table: TokenTable, kind: ContributionWeight) -> Tensor:
    """Returns the weight of each token in the contributions of Eq. 8, shape [N].

    `rollout_prob` is the paper's pi_rollout(y_t); `none` is the authors' code. Both are multiplied by the
    token's share in the loss, so that they are contributions to the actual gradient, even under a sequence
    mean. Under a token mean this changes nothing.
    """
    return table.weight * table.behaviour_logp.exp() if kind == "rollout_prob" else table.weight


@reads("ratio", "advantage", "weight", "behaviour_logp", "origin")
def contributions(
    table: TokenTable, weight: ContributionWeight, lows: Tensor, highs: Tensor, kind: Kind = "gradient"
) -> tuple[Tensor, Tensor]:
    """Returns the contribution of all positive tokens under each upper bound, [H], and of all negative tokens
    under each lower bound, [L]; see `objectives.bounds.contribution_curves`.
    Tokens that were not sampled from the policy contribute nothing: their ratio compares no policies.
    """
    weights = contribution_weight(table, weight)
    return contribution_curves(table.ratio, table.advantage, table.is_sampled, weights, lows, highs, kind)


@reads("ratio", "advantage", "weight", "behaviour_logp", "origin", "slope")
def positive_shares(
    table: TokenTable, kind: ContributionWeight, chosen: Tensor | bool = True
) -> tuple[Tensor, Tensor]:
    """Returns the share of positive tokens in the contributions as the objective cuts them (Eq. 5), and
    without any clipping; 0-dim float64, NaN if nothing contributes.

    Args:
        table: minibatch, with the slopes of its update.
        kind: see `contribution_weight`.
        chosen: tokens that count, [N] bool.
    """
    mass = contribution_weight(table, kind).double() * table.ratio * (table.is_sampled & chosen)
    is_positive = table.advantage > 0
    cut, whole = (
        positive_contribution((parts * is_positive).sum(), (parts * ~is_positive).sum(), "share")
        for parts in (mass * table.slope.abs(), mass * table.advantage.abs())
    )
    return cut, whole
