"""PPO-clip with a bonus for the entropy of the policy (Skywork-OR1, arXiv 2505.22312; older: A3C)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from bapo_lightning.objectives.surrogate import DualClip, clipped_surrogate
from bapo_lightning.objectives.token_table import TokenTable


@dataclass(frozen=True)
class EntropyBonus:
    """Objective (table) -> PPO-clip + coefficient * H per token, [N]; the statistic of the table is the
    coefficient, and gradients flow through H, the entropy of the next-token distribution.

    The bonus is weighted like the tokens: under a token mean it is the mean entropy of the update.

    Attributes:
        dual_clip: see `clipped_surrogate`.
    """

    needs_entropy_gradient: ClassVar[bool] = True
    dual_clip: DualClip | None = None

    def __call__(self, table: TokenTable) -> Tensor:
        """Returns the objective of each token, [N].

        Args:
            table: [N] tokens, with bounds.
        """
        clipped = clipped_surrogate(table.ratio, table.advantage, table.low, table.high, self.dual_clip)
        return clipped + table.statistic * table.entropy
