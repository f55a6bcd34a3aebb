"""GAPO: the fewer answers of a group are right, the further they may be reinforced (arXiv 2609.00444)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bapo_lightning.objectives.sequences import group_sum, mean_over_sequence, per_sequence
from bapo_lightning.objectives.surrogate import clipped_surrogate
from bapo_lightning.objectives.token_table import TokenTable, reads

OTHERS_WRONG = "others_wrong"


def share_of_others_wrong(table: TokenTable) -> Tensor:
    """Returns (G - c) / (G - 1) for each token's group, [N]: c of its G responses are right.

    Responses with A > 0 count as right, which is exact if rewards are 0 or 1 and the baseline is the group's
    mean. Responses without a token to train on do not count.
    """
    size = group_sum(per_sequence(torch.ones_like(table.advantage), table), table)
    right = group_sum(per_sequence((table.advantage > 0).to(size.dtype), table), table)
    return (size - right) / (size - 1).clamp_min(1)


@dataclass(frozen=True)
class GAPO:
    """PPO-clip per token, [N], with a separate upper bound for each group.

    The upper bound grows from 2 - low (all right: as far from 1 as the lower bound) to high (one right). The
    clipped ratio is the response's, as in GSPO, or the token's.
    """

    level: Literal["sequence", "token"] = "sequence"

    @reads("advantage", "sequence", "group", "count")
    def prepare(self, table: TokenTable) -> dict[str, Tensor]:
        """Returns `share_of_others_wrong`."""
        return {OTHERS_WRONG: share_of_others_wrong(table)}

    def __call__(self, table: TokenTable) -> Tensor:
        """Returns the objective of each token, [N]."""
        ratio = table.ratio if self.level == "token" else mean_over_sequence(table.log_ratio, table).exp()
        least = 2 - table.low
        high = torch.where(table.advantage > 0, least + (table.high - least) * table[OTHERS_WRONG], least)
        return clipped_surrogate(ratio, table.advantage, table.low, high)
