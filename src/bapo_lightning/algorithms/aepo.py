"""AEPO: GRPO, and REINFORCE on right answers of another temperature (arXiv 2510.08141)."""

from __future__ import annotations

from torch import Tensor

from bapo_lightning.objectives.surrogate import DualClip, clipped_surrogate
from bapo_lightning.objectives.token_table import TokenTable
from bapo_lightning.types import Origin


def aepo(table: TokenTable, dual_clip: DualClip | None = None) -> Tensor:
    """Returns A log pi for tokens of another temperature, min(r A, clip(r, low, high) A) for others, [N].

    So the gradient is that of GRPO plus E[R grad log pi] over answers of pi^T: a ratio to pi^T would take the
    temperature back out. log r stands for log pi, they differ by a constant. The authors' code has PPO's clip
    there, too, with the ratio to the policy of temperature 1 before the batch.

    Args:
        table: [N] tokens, with bounds.
        dual_clip: see `clipped_surrogate`.
    """
    clipped = clipped_surrogate(table.ratio, table.advantage, table.low, table.high, dual_clip)
    return (table.advantage * table.log_ratio).where(table.origin == Origin.TEMPERED, clipped)
