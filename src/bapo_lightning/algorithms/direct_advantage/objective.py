"""Direct Advantage Policy Optimization: regression of a step's log-ratio on its advantage."""

from __future__ import annotations

from torch import Tensor

from bapo_lightning.objectives.sequences import per_step, step_sum
from bapo_lightning.objectives.token_table import TokenTable, reads
from bapo_lightning.system.values import PositiveFactor


@reads("step")
def direct_advantage(table: TokenTable, beta: PositiveFactor) -> Tensor:
    """Returns -1/2 (A / beta - log r)^2 of each token's step, divided among its tokens, [N] (arXiv
    2412.18279, Eq. 12), where log r is summed over the step's tokens. beta, the weight of the KL penalty, is
    in units of the reward; paper: 0.01 or 0.02.

    The weighting `step_mean` makes it the mean over the steps of the update.

    Sources: the paper's text, without its typeset formulas, and a review that quotes these and describes the
    code of the supplement, which sums over the tokens of a step and averages half the square. We read it so
    that the reference policy, which the paper keeps for an iteration, is the policy that sampled the step: a
    rollout batch is an iteration. If a part of a step is too old to be trained on, only the rest counts.
    """
    missing = table.advantage / beta - step_sum(table.log_ratio, table)
    return -per_step(missing.square() / 2, table)
