"""REINFORCE on data of any policy, without an importance ratio (Williams 1992)."""

from __future__ import annotations

from torch import Tensor

from bapo_lightning.objectives.token_table import TokenTable


def reinforce(table: TokenTable) -> Tensor:
    """Returns A log pi per token, [N]: the objective of methods without ratios, and of SFT on right answers.

    log r stands for log pi: they differ by a constant. If ratios are 1, the gradient equals GRPO's.
    """
    return table.advantage * table.log_ratio
