"""Separate weights for positive and negative samples: PSR, NSR and W-REINFORCE (arXiv 2506.01347)."""

from __future__ import annotations

from torch import Tensor

from bapo_lightning.system.values import Factor


def psr_nsr(rewards: Tensor, right: Factor = 0.1, wrong: Factor = 1.0) -> Tensor:
    """Returns A = right R - wrong (1 - R), [P, G], without a baseline, so that groups of equal rewards have
    advantages, too.

    PSR only reinforces right answers (right 1, wrong 0), NSR only pushes away from wrong ones (0, 1),
    W-REINFORCE does both with little weight on right answers (0.1, 1). For PSR and NSR the authors' code
    removes the other samples and averages over the rest; here they stay in the average with advantages of
    zero. The entropy bonus of 0.001 in their runs, the default of their verl, is left out. Rewards are 1 for
    a right answer and 0 for a wrong one; the formula is linear in between. `right` is the paper's lambda.
    """
    return right * rewards - wrong * (1 - rewards)
