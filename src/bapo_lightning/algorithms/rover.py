"""ROVER: Q-values of the uniform policy, read from the policy itself (arXiv 2509.24981)."""

from __future__ import annotations

from torch import Tensor

from bapo_lightning.objectives.sequences import at_next
from bapo_lightning.objectives.token_table import TokenTable, reads
from bapo_lightning.system.values import Factor, PositiveFactor


@reads("mean_logp", "entry_mean_logp")
def rover(table: TokenTable, rho: PositiveFactor = 1.0, beta: Factor = 1.0) -> Tensor:
    """Returns -(Q - weight(R - R_mean + beta Q_next))^2 per token, [N], where Q = rho log r.

    Q_next is the Q-value of a uniformly random next token: the mean over the vocabulary of
    rho (log pi - log pi_old), at the next token of the response; 0 at the last token. pi_old is the
    trainer's policy when the batch entered training. log r is relative to the same policy under
    `correction=recomputed`, as in the authors' code, and to the policy that sampled the token otherwise.

    The advantage stands for R - R_mean, on every token. The authors' code for the countdown game does the
    same; its script for mathematics also divides by the group's deviation. An expert's log-prob is 0 by
    definition, so that Q is rho log pi at its tokens, which become more likely. The authors' code calls rho
    and beta `rover_t` and `next_q_scale_factor`.
    """
    following = at_next(table["mean_logp"] - table["entry_mean_logp"], table)
    target = table.advantage + beta * rho * following
    return -(rho * table.log_ratio - target).square()
