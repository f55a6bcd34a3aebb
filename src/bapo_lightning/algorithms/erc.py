"""ERC: tokens at which the entropy has changed have no gradient (arXiv 2512.05591)."""

from __future__ import annotations

import torch
from torch import Tensor

from bapo_lightning.objectives.surrogate import DualClip, clipped_surrogate
from bapo_lightning.objectives.token_table import TokenTable, reads
from bapo_lightning.system.values import Share

SMALLEST = 1e-8  # nats, added to both entropies, as in the authors' code


@reads("entry_entropy")
def erc(table: TokenTable, delta: Share = 0.05, dual_clip: DualClip | None = 10.0) -> Tensor:
    """Returns PPO-clip, without gradient if H / H_old is not within (1 - delta, 1 + delta), [N].

    H is the entropy of the next-token distribution, H_old the same under the trainer's policy when the batch
    entered training (verl's old policy); both describe the whole distribution, while the ratio is of one
    token. A token that is left out still counts in the mean. Entropies below 1e-6 nats are mostly rounding,
    and so is the decision about their tokens. An expert's tokens are treated like all others.

    The authors combine it with DAPO or CE-GPPO (`grpo_erc` and `gppo_erc` in their code); this is the first.
    """
    change = (table.entropy.detach() + SMALLEST) / (table["entry_entropy"] + SMALLEST)
    objective = clipped_surrogate(table.ratio, table.advantage, table.low, table.high, dual_clip)
    return torch.where((change > 1 - delta) & (change < 1 + delta), objective, objective.detach())
