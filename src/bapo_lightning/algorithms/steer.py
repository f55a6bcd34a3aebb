"""STEER: gives less weight to tokens that would move the entropy much (arXiv 2510.10150)."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Annotated, Literal

import torch
from annotated_types import Gt, Le
from torch import Tensor

from bapo_lightning.objectives.objective import clip
from bapo_lightning.objectives.surrogate import DualClip
from bapo_lightning.objectives.token_table import TokenTable, reads

Shape = Literal["exponential", "linear"]
# The authors' value: if no token moves the entropy much, none is weighted down to the least.
LEAST_LARGEST = 0.02
LEAST_PROB = 1e-8  # also theirs
WEIGHT = "entropy_weight"


def weight_by_entropy_change(
    table: TokenTable, least: float = 0.8, most: float = 1.0, shape: Shape = "exponential"
) -> Tensor:
    """Returns the weight of each token, [N], from its estimated effect on the entropy H,
    omega = |A p / q (1 - p) (log p + H)|. Probabilities p and q below 1e-8 count as 1e-8.

    exponential: exp(-k omega) with k = -log(least) / max(largest omega, 0.02); `most` is 1.
    linear: from `most` for the smallest omega of the update to `least` for the largest; 1.2 to 0.8 in the
        authors' `run_linear.sh`.

    The authors' code takes the largest omega of each micro-batch; here it is the whole update's.
    """
    prob, before = table.logp.exp(), table.proximal_logp.exp()
    is_tiny = prob.minimum(before) < LEAST_PROB
    ratio = torch.where(is_tiny, prob.clamp_min(LEAST_PROB) / before.clamp_min(LEAST_PROB), table.ratio)
    surprise = table.logp.clamp_min(log(LEAST_PROB)) + table.entropy
    change = (table.advantage * ratio * (1 - prob.clamp_min(LEAST_PROB)) * surprise).abs()
    is_there = table.count > 0
    largest = torch.where(is_there, change, 0.0).max()
    if shape == "exponential":
        return (log(least) * change / largest.clamp_min(LEAST_LARGEST)).exp()
    smallest = torch.where(is_there, change, torch.inf).min()
    place = torch.where(largest > smallest, (change - smallest) / (largest - smallest), 0.5)
    return most - (most - least) * place


@dataclass(frozen=True)
class STEER:
    """PPO-clip per token times its `weight_by_entropy_change`, [N]."""

    least: Annotated[float, Gt(0), Le(1)] = 0.8
    most: Annotated[float, Gt(0)] = 1.0
    shape: Shape = "exponential"
    dual_clip: DualClip | None = None

    @reads("logp", "proximal_logp", "advantage", "ratio", "entropy", "count")
    def prepare(self, table: TokenTable) -> dict[str, Tensor]:
        """Returns `weight_by_entropy_change`."""
        return {WEIGHT: weight_by_entropy_change(table, self.least, self.most, self.shape)}

    def __call__(self, table: TokenTable) -> Tensor:
        """Returns the objective of each token, [N]."""
        return table[WEIGHT] * clip(table, self.dual_clip)
