"""GMC-GRPO: ratios of whole responses, whose sum over a group is capped (arXiv 2610.01896)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bapo_lightning.objectives.corrections.tokens import High
from bapo_lightning.objectives.sequences import group_sum, per_sequence, sequence_sum
from bapo_lightning.objectives.token_table import TokenTable, reads

SCALE = "group_scale"
LIMIT = 40.0  # nats, of a response's log-ratio, so that sums stay finite


def response_ratio(table: TokenTable) -> Tensor:
    """Returns pi(y) / pi_behaviour(y) of each token's response y, [N], without a gradient."""
    return sequence_sum(table.log_ratio.detach(), table).clamp_max(LIMIT).exp()


@dataclass(frozen=True)
class GMCGRPO:
    """sg(s min(1, G cap / sum of s over the group)) A log pi per token, [N], without bounds.

    s is the response's ratio, and G the number of the group's responses: a group that became likelier than
    `cap` on average is scaled down as a whole, so that its responses keep their proportions. log r stands for
    log pi: they differ by a constant.
    """

    cap: High = 1.28

    @reads("log_ratio", "sequence", "group", "count")
    def prepare(self, table: TokenTable) -> dict[str, Tensor]:
        """Returns the factor of each token's group, [N] in (0, 1]."""
        mass = group_sum(per_sequence(response_ratio(table), table), table)
        size = group_sum(per_sequence(torch.ones_like(mass), table), table)
        return {SCALE: (self.cap * size / mass).clamp_max(1.0)}

    def __call__(self, table: TokenTable) -> Tensor:
        """Returns the objective of each token, [N]."""
        return table[SCALE] * response_ratio(table) * table.advantage * table.log_ratio
