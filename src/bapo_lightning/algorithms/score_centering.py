"""Score centering (arXiv 2609.20807): removes a weighted score's part that does not vanish on average."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from bapo_lightning.objectives.corrections.tokens import High, Low
from bapo_lightning.objectives.surrogate import importance_ratio
from bapo_lightning.objectives.token_table import TokenTable, reads
from bapo_lightning.system.values import CountOrZero

Weight = Literal["none", "truncated", "masked"]
LEAST_REST = 1e-6  # probability outside the head; below it the head is the whole vocabulary


def weighed(q: Tensor, p: Tensor, weight: Weight, low: float, high: float) -> Tensor:
    """Returns q f(p / q) elementwise, which is finite if q is 0.

    none       f = 1
    truncated  f = min(r, high)
    masked     f = r, but 0 where r is below `low` or above `high`
    """
    if weight == "none":
        return q
    if weight == "truncated":
        return torch.minimum(p, high * q)
    return torch.where((p >= low * q) & (p <= high * q), p, 0.0)


@reads("candidate_logp", "candidate_behaviour_logp")
def score_centering(
    table: TokenTable,
    weight: Weight = "none",
    low: Low = 0.5,
    high: High = 2.0,
    head: CountOrZero | None = None,
) -> Tensor:
    """Returns A (sg(f(r)) log pi - sum over v in H of sg(c_v) log pi_v) per token, [N].

    c_v = q_v f(p_v / q_v) - (q' f(p' / q') / p') p_v

    p and q are the policy's and the behaviour policy's probabilities of token v; p' and q' are the
    probabilities of all tokens outside of the head H together, which share one weight, so that the head is
    enough: the scores of all tokens sum to 0 under p. If H is the whole vocabulary, the sum is the exact mean
    of f(r) grad log pi under the behaviour policy. r is the ratio to the behaviour policy, whatever
    `correction` is. log r stands for log pi: they differ by a constant.

    Args:
        table: [N] tokens; their candidates are [N, K] nats, the K likeliest under the behaviour policy.
        weight: f, as in `weighed`: REINFORCE, truncated or masked importance sampling.
        low: least ratio of `masked`.
        high: largest ratio of `truncated` and `masked`.
        head: number of candidates in H, the likeliest under the behaviour policy; None: all of the table, 0:
            none, so that nothing is centred and no engine records candidates.
    """
    ratio = importance_ratio(table.logp.detach(), table.behaviour_logp)
    weighted = weighed(torch.ones_like(ratio), ratio, weight, low, high) * table.log_ratio
    if head == 0:
        return table.advantage * weighted
    logp, before = table["candidate_logp"], table["candidate_behaviour_logp"]
    if head is not None and head < before.shape[-1]:
        before, chosen = before.topk(head)
        logp = logp.gather(-1, chosen)
    p, q = logp.detach().exp(), before.exp()
    rest_p, rest_q = 1 - p.sum(-1, keepdim=True), (1 - q.sum(-1, keepdim=True)).clamp_min(0.0)
    share = weighed(rest_q, rest_p, weight, low, high) / rest_p.clamp_min(LEAST_REST)
    centre = weighed(q, p, weight, low, high) - torch.where(rest_p > LEAST_REST, share, 0.0) * p
    return table.advantage * (weighted - (centre * logp).sum(-1))
