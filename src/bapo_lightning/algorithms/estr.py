"""ESTR: a trust region that widens with the entropy at a token's place (arXiv 2607.22186)."""

from __future__ import annotations

import torch
from torch import Tensor

from bapo_lightning.objectives.objective import clip
from bapo_lightning.objectives.surrogate import DualClip
from bapo_lightning.objectives.token_table import TokenTable, reads
from bapo_lightning.system.values import Count, Positive


@reads("candidate_behaviour_logp")
def estr(
    table: TokenTable,
    threshold: Positive = 1.0,
    floor: Positive = 0.01,
    head: Count | None = None,
    dual_clip: DualClip | None = None,
) -> Tensor:
    """Returns PPO-clip per token, [N], but 0 if (log r)^2 / (H + floor) is above `threshold`.

    H is the behaviour policy's entropy at the token's place in nats, and r the ratio to the behaviour policy,
    whatever `correction` is: the square of log r grows with H. The mean still counts masked tokens.

    Args:
        table: [N] tokens; their candidates are [N, K] nats, the K likeliest under the behaviour policy.
        threshold: largest square, in units of H + `floor`.
        floor: in nats, for places without a choice.
        head: number of likeliest candidates used for H; all others count as one outcome, which makes H too
            small. None: all of the table.
        dual_clip: c of `clipped_surrogate`.
    """
    known = table["candidate_behaviour_logp"]
    if head is not None and head < known.shape[-1]:
        known = known.topk(head).values
    mass = known.exp()
    rest = (1 - mass.sum(-1)).clamp_min(0.0)
    entropy = torch.special.entr(mass).sum(-1) + torch.special.entr(rest)
    moved = table.logp.detach() - table.behaviour_logp
    return torch.where(moved.square() <= threshold * (entropy + floor), clip(table, dual_clip), 0.0)
