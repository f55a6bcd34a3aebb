"""VESPO: a soft weight for each response from the product of its ratios (arXiv 2602.10693)."""

from __future__ import annotations

import torch
from torch import Tensor

from bapo_lightning.objectives.sequences import sequence_sum
from bapo_lightning.objectives.token_table import TokenTable
from bapo_lightning.system.values import Factor, PositiveFactor


def vespo(
    table: TokenTable,
    power_positive: Factor = 2.0,
    decay_positive: PositiveFactor = 3.0,
    power_negative: Factor = 3.0,
    decay_negative: PositiveFactor = 2.0,
) -> Tensor:
    """Returns sg(W^k exp(lambda (1 - W))) A log pi per token, [N], with W the product of r over the response;
    nothing is clipped. k is a power and lambda a decay, the positive ones if A >= 0.

    The weight is 1 at W = 1, largest at W = k / lambda, and 0 far out. Neither the authors' limits of log W,
    [-18.4, 20], nor TRL's change any weight above 1e-15.
    """
    log_product = sequence_sum(table.log_ratio.detach(), table)
    power = torch.where(table.advantage >= 0, power_positive, power_negative)
    decay = torch.where(table.advantage >= 0, decay_positive, decay_negative)
    weight = (power * log_product - decay * torch.expm1(log_product)).exp()
    return weight * table.advantage * table.log_ratio
