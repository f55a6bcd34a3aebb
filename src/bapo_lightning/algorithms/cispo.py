"""CISPO: the weight of a token is clipped instead of the token (MiniMax-M1, arXiv 2506.13585, Eq. 4)."""

from __future__ import annotations

from torch import Tensor

from bapo_lightning.objectives.token_table import TokenTable


def cispo(table: TokenTable) -> Tensor:
    """Returns sg(clip(r, low, high)) A log pi per token, [N], so that every token keeps a gradient.

    log r stands for log pi: they differ by a constant. Published codes disagree about the bounds: the paper
    omits the lower bound and tunes the upper one, ScaleRL (arXiv 2510.13786) takes 5, verl [0.8, 1.2],
    NeMo-RL [0, 6].
    """
    weight = table.ratio.detach().clamp(table.low, table.high)
    return weight * table.advantage * table.log_ratio
