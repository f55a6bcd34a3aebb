"""RIPO: bounds that widen as a token's probability falls, in closed form (arXiv 2607.10169)."""

from __future__ import annotations

from torch import Tensor

from bapo_lightning.objectives.surrogate import clipped_surrogate
from bapo_lightning.objectives.token_table import TokenTable
from bapo_lightning.system.values import Positive


def ripo(table: TokenTable, low: Positive = 0.05, high: Positive = 0.05) -> Tensor:
    """Returns PPO-clip within [1 - sqrt(low / q), 1 + sqrt(high / q)] per token, [N]; q is the probability
    under the proximal policy.
    """
    before = table.proximal_logp.exp()
    below, above = ((reach / before).sqrt() for reach in (low, high))
    return clipped_surrogate(table.ratio, table.advantage, 1 - below, 1 + above)
