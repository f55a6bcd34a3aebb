"""LUFFY: answers of the policy beside an expert's, whose unlikely tokens count more (arXiv 2504.14945)."""

from __future__ import annotations

from torch import Tensor

from bapo_lightning.objectives.token_table import TokenTable
from bapo_lightning.types import Origin
from bapo_lightning.values import Positive


def luffy(table: TokenTable, gamma: Positive = 0.1) -> Tensor:
    """Returns f(p) A for the tokens of an expert and r A for all others, [N], where f(p) = p / (p + gamma).

    The behaviour log-prob of an expert's token is 0 by definition, so that p is its ratio. The slope of f in
    log p is gamma p / (p + gamma)^2: largest at p = gamma, while r alone would forget tokens that the policy
    finds unlikely. Nothing is clipped, as in the authors' runs (`loss_remove_clip`); a policy that is several
    updates off-policy may need bounds, which this objective does not have. Their entropy bonus of 0.001 is
    left out.

    Args:
        table: [N] tokens.
        gamma: probability of an expert's token at which it counts most; 0.1 in the paper.
    """
    ratio = table.ratio
    return (ratio / (ratio + gamma)).where(table.origin == Origin.EXPERT, ratio) * table.advantage
