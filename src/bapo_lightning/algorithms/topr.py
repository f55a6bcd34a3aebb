"""TOPR, tapered off-policy REINFORCE (arXiv 2503.14286, Eq. 8)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from bapo_lightning.objectives.sequences import mean_over_sequence, sequence_sum
from bapo_lightning.objectives.token_table import TokenTable

Level = Literal["sequence", "token", "geometric"]


def topr(table: TokenTable, level: Level = "sequence") -> Tensor:
    """Returns A log pi per token, [N], times sg(min(ratio, 1)) if A < 0: right answers are imitated, however
    old they are, and wrong answers that have become unlikely push no further.

    log r stands for log pi: they differ by a constant. The ratio has three readings:

    sequence   pi(y) / pi_behaviour(y), the product over the response: the paper
    token      each token's own: ROLL, which decides right or wrong by the sign of the score
    geometric  the product's L-th root for a response of L tokens: verl's pull request 6986

    The paper has rewards of 1 and -1 and no baseline, as in `plus_or_minus_one`.
    """
    log_ratio = table.log_ratio.detach()
    if level == "sequence":
        log_ratio = sequence_sum(log_ratio, table)
    elif level == "geometric":
        log_ratio = mean_over_sequence(log_ratio, table)
    weight = torch.where(table.advantage < 0, log_ratio.clamp_max(0.0).exp(), 1.0)
    return weight * table.advantage * table.log_ratio


def plus_or_minus_one(rewards: Tensor) -> Tensor:
    """Returns 1 for a positive reward and -1 for any other, without a baseline, [P, G]."""
    return torch.where(rewards > 0, 1.0, -1.0).to(rewards.dtype)
