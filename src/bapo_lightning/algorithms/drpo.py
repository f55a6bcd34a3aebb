"""DRPO: a smooth pull towards the behaviour policy in place of DPPO's mask (arXiv 2606.09821)."""

from __future__ import annotations

from torch import Tensor

from bapo_lightning.objectives.token_table import TokenTable
from bapo_lightning.system.values import Positive


def drpo(table: TokenTable, width: Positive = 12.5) -> Tensor:
    """Returns r A - |A| q (r - 1)^2 / (2 width) per token, [N], whose gradient in log pi is
    r A (1 - sign(A (r - 1)) |p - q| / width).

    p is the policy's probability of the token, q the proximal policy's. At the width of the authors' script,
    12.5, the factor stays within 0.92 and 1.08, since |p - q| is at most 1.
    """
    moved = table.ratio - 1
    pull = table.advantage.abs() * table.proximal_logp.exp() * moved.square() / (2 * width)
    return table.ratio * table.advantage - pull
