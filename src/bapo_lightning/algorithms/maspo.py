"""MASPO: a Gaussian of the ratio in place of clipping, wide for unlikely tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from bapo_lightning.objectives.token_table import TokenTable
from bapo_lightning.system.values import NonNegative, Positive

LEAST_FACTOR, LARGEST_FACTOR = 0.1, 10.0  # of a width, by the advantage


def maspo(
    table: TokenTable,
    width: Positive = 1.0,
    most: Positive = 10.0,
    exponent: NonNegative = 0.3,
    slant: NonNegative = 0.03,
) -> Tensor:
    """Returns sg(w) r A per token, [N], with w = exp(-(r - 1)^2 / (2 sigma^2)) if the token moves with its
    advantage (A > 0 and r > 1, or A < 0 and r < 1), and w = 1 otherwise:

        sigma = clip(width / q^exponent, width, most) * factor
        A > 0: factor = 1 + slant A        A < 0: factor = 1 / (1 - slant A), both in [0.1, 10]

    q is the token's probability under the proximal policy. Nothing else is clipped. Source: the code of
    FlyTune/MASPO-RL; its exponent, alpha, is 0.3, and 0.5 for its model of 1.5B. It calls the width
    sigma_base and the slant beta.
    """
    ratio, advantage = table.ratio.detach(), table.advantage
    spread = width * (-exponent * table.proximal_logp.detach()).exp()
    factor = torch.where(advantage > 0, 1 + slant * advantage, 1 / (1 + slant * advantage.abs()))
    sigma = spread.clamp(width, most) * factor.clamp(LEAST_FACTOR, LARGEST_FACTOR)
    moves = (ratio - 1) * advantage > 0
    weight = torch.where(moves, torch.exp(-(ratio - 1).square() / (2 * sigma.square())), 1.0)
    return weight * table.ratio * advantage
