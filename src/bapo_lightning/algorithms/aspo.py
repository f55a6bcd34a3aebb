"""ASPO: positive tokens weigh 1 / r instead of r, so that unlikely ones catch up (arXiv 2510.06062)."""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from bapo_lightning.objectives.sequences import rank_in_sequence, sequence_length
from bapo_lightning.objectives.surrogate import DualClip
from bapo_lightning.objectives.token_table import TokenTable
from bapo_lightning.system.values import Advice

Widening = Annotated[
    float, Ge(1), Advice("must be at least 1, at which all tokens have the same bounds; 2.0 is the paper's")
]
LowEntropyShare = Annotated[float, Ge(0), Lt(1), Advice("must be in [0, 1); 0.8 is the paper's")]


def aspo(
    table: TokenTable, cap: DualClip = 3.0, widening: Widening = 1.0, low_entropy_share: LowEntropyShare = 0.8
) -> Tensor:
    """Returns sg(w) A log pi per token, [N], where

        A > 0:  w = min(1 / r, cap), but 0 for r > high
        A < 0:  w = min(r, cap),     but 0 for r < low

    log r stands for log pi: they differ by a constant. Both caps keep the gradient ("soft dual clip"), unlike
    PPO's dual clip.

    With a `widening` the tokens of a response with the highest entropies, all but `low_entropy_share`, have
    bounds that are `widening` times as far from 1: the authors' 0.2 and 0.4. Their code finds these tokens in
    each response under the current policy. It passes tokens of LOW entropy as `high_entropy_mask` and gives
    that mask the narrow bounds, so that names are exchanged twice and the bounds are right. Their KL term is
    left out; in their scripts its coefficient is 0.001 at tokens of low entropy, and 0 at others.
    """
    ratio = table.ratio.detach()
    rank = rank_in_sequence(table.entropy.detach(), table)
    uncertain = rank > low_entropy_share * (sequence_length(table) - 1)
    factor = torch.ones_like(ratio).masked_fill(uncertain, widening)
    positive = torch.where(ratio > 1 + factor * (table.high - 1), 0.0, (1 / ratio).clamp_max(cap))
    negative = torch.where(ratio < 1 - factor * (1 - table.low), 0.0, ratio.clamp_max(cap))
    weight = torch.where(table.advantage > 0, positive, negative)
    return weight * table.advantage * table.log_ratio
