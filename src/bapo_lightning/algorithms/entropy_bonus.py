"""PPO-clip with a bonus for the policy's entropy, whose coefficient follows the entropy (Skywork-OR1, arXiv
2505.22312; a plain bonus is older: A3C).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bapo_lightning.objectives.objective import clip
from bapo_lightning.objectives.sequences import mean_over_tokens
from bapo_lightning.objectives.surrogate import DualClip
from bapo_lightning.objectives.token_table import TokenTable, reads
from bapo_lightning.system.values import NonNegative, Positive

COEFFICIENT = "coefficient"


class EntropyBonus(nn.Module):
    """Objective (table) -> PPO-clip + coefficient * H per token, [N]; gradients flow through H, the entropy
    of the next-token distribution.

    The bonus is weighted like the tokens: under a token mean it is the mean entropy of the update. It is 0
    while the mean entropy of the update's tokens is above the target. After every update the coefficient
    moves up if the entropy was at or below the target, else down. A checkpoint holds it.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"entropy_gradient"})
    past: Tensor  # the coefficient for the next update, 0-dim

    def __init__(
        self,
        target: Positive = 0.2,
        step: Positive = 1e-4,
        start: NonNegative = 0.0,
        least: NonNegative = 0.0,
        most: Positive = 5e-3,
        dual_clip: DualClip | None = None,
    ) -> None:
        """The target is in nats; an update moves the coefficient by a step, from `start` within `least` and
        `most`. The defaults are from the authors' scripts; TRL has a step of 0.005 up to 1.
        """
        super().__init__()
        self.target, self.size, self.least, self.most = target, step, least, most
        self.dual_clip = dual_clip
        self.register_buffer("past", torch.tensor(float(start)))

    @staticmethod
    def problems(options: Mapping[str, Any]) -> Iterator[str]:
        """Yields mistakes in options of the right types; each text begins with an option's name."""
        if not options["least"] <= options["start"] <= options["most"]:
            yield (
                f"start={options['start']} must be from least={options['least']} to most={options['most']}; "
                "write start=0.0"
            )

    @reads("entropy", "count")
    def prepare(self, table: TokenTable) -> dict[str, Tensor]:
        """Returns the coefficient of this update, 0-dim, and remembers the next.

        The authors' code compares the entropy of the previous batch, estimated as mean -log pi, and is thus
        late by one batch.
        """
        columns, self.past = self.remember(table, self.past)
        return columns

    def remember(self, table: TokenTable, past: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Returns the coefficients of this update and of the next, without changing any state."""
        entropy = mean_over_tokens(table.entropy, table.count).to(past)
        low = entropy <= self.target
        following = (past + torch.where(low, self.size, -self.size)).clamp(self.least, self.most)
        # An update that is not finite will be skipped, and must not be remembered.
        return {COEFFICIENT: torch.where(low, past, 0.0)}, torch.where(entropy.isfinite(), following, past)

    def forward(self, table: TokenTable) -> Tensor:
        """Returns the objective of each token, [N]."""
        return clip(table, self.dual_clip) + table[COEFFICIENT] * table.entropy
