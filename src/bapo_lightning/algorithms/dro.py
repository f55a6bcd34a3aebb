"""DRO and Kimi k1.5: regression of log r on the advantage, without weights or bounds."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from bapo_lightning.objectives.sequences import per_sequence, sequence_sum
from bapo_lightning.objectives.token_table import TokenTable
from bapo_lightning.system.values import PositiveFactor


def dro(table: TokenTable, beta: PositiveFactor, level: Literal["token", "sequence"] = "token") -> Tensor:
    """Returns A log pi - beta / 2 (log r)^2 per token, [N], which is largest at log r = A / beta.

    log r stands for log pi: they differ by a constant. Kimi calls beta tau. Two readings of the square:

    token     of each token's own ratio: verl (`dro`), ROLL's Kimi k1.5 and Kimi K2
    sequence  of the response's product of ratios, divided among its tokens: DRO (arXiv 2405.19107) and Kimi
              k1.5 (arXiv 2501.12599, Eq. 3) as printed
    """
    if level == "token":
        square = table.log_ratio.square()
    else:
        square = per_sequence(sequence_sum(table.log_ratio, table).square(), table)
    return table.advantage * table.log_ratio - beta / 2 * square
