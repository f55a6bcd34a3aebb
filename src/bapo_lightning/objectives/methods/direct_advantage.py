"""Direct Advantage Policy Optimization: regression of a step's log-ratio to its advantage."""

from __future__ import annotations

from torch import Tensor

from bapo_lightning.objectives.sequences import per_step, step_sum
from bapo_lightning.objectives.token_table import TokenTable
from bapo_lightning.values import Positive


def direct_advantage(table: TokenTable, beta: Positive) -> Tensor:
    """Returns -1/2 (A / beta - log r)^2 of each token's step, shared out over its tokens, [N] (arXiv
    2412.18279, Eq. 12), where log r sums those of the step's tokens.

    The weighting `step_mean` makes it the mean over the steps of the update. The sum over tokens, without a
    mean, is the supplement's code as a review reports it. The paper takes a fixed reference policy, which
    samples all data of an iteration; here it is the policy that sampled the step, and an iteration is a
    rollout batch. Of a step that is in part too old to be trained on, the rest counts alone.

    Args:
        table: of [N] tokens, advantages equal within a step.
        beta: of the KL penalty, in units of the reward; paper: 0.01 or 0.02.
    """
    missing = table.advantage / beta - step_sum(table.log_ratio, table)
    return -per_step(missing.square() / 2, table)
