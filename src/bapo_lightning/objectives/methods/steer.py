"""STEER: tokens that would move the entropy much count less (arXiv 2510.10150)."""

from __future__ import annotations

from math import log
from typing import Annotated, Literal

import torch
from annotated_types import Gt, Le
from torch import Tensor

from bapo_lightning.objectives.surrogate import DualClip, clipped_surrogate
from bapo_lightning.objectives.token_table import TokenTable, needs

# The authors': where no token moves the entropy much, none is weighted down to the least.
LEAST_LARGEST = 0.02


@needs("logp", "advantage", "ratio", "entropy", "count")
def weight_by_entropy_change(
    table: TokenTable,
    least: Annotated[float, Gt(0), Le(1)] = 0.8,
    most: Annotated[float, Gt(0)] = 1.0,
    shape: Literal["exponential", "linear"] = "exponential",
) -> Tensor:
    """Returns the weight of each token, [N], from its estimated effect on the entropy H,
    omega = |A r (1 - p) (log p + H)|.

    exponential: exp(-k omega) with k = -log(least) / max(largest omega, 0.02); `most` is 1.
    linear: from `most` for the smallest omega of the update to `least` for the largest; 1.2 to 0.8 in the
        authors' `run_linear.sh`.

    The authors' code takes the largest omega of each micro-batch; here it is that of the whole update.

    Args:
        table: whole update, [N].
        least: smallest weight.
        most: largest weight.
        shape: shape of the weight, as above.
    """
    prob = table.logp.exp()
    change = (table.advantage * table.ratio * (1 - prob) * (table.logp + table.entropy)).abs()
    is_there = table.count > 0
    largest = torch.where(is_there, change, 0.0).max()
    if shape == "exponential":
        return (log(least) * change / largest.clamp_min(LEAST_LARGEST)).exp()
    smallest = torch.where(is_there, change, torch.inf).min()
    place = torch.where(largest > smallest, (change - smallest) / (largest - smallest), 0.5)
    return most - (most - least) * place


def steer(table: TokenTable, dual_clip: DualClip | None = None) -> Tensor:
    """Returns PPO-clip per token times its weight, [N].

    Args:
        table: [N] tokens, with bounds; its statistic is that of `weight_by_entropy_change`.
        dual_clip: see `clipped_surrogate`.
    """
    return table.statistic * clipped_surrogate(table.ratio, table.advantage, table.low, table.high, dual_clip)
