"""Positive and negative samples apart: PSR, NSR and W-REINFORCE (arXiv 2506.01347)."""

from __future__ import annotations

from torch import Tensor

from bapo_lightning.values import Factor


def psr_nsr(rewards: Tensor, right: Factor = 0.1, wrong: Factor = 1.0) -> Tensor:
    """Returns A = right R - wrong (1 - R), [P, G], without a baseline, so that groups of equal rewards have
    one, too.

    PSR reinforces right answers only (right 1, wrong 0), NSR pushes wrong ones away only (0, 1), W-REINFORCE
    does both with little weight on the right (0.1, 1). For PSR and NSR the authors' code removes the other
    samples, and averages over those left; here they stay in the average with advantages of zero.
    Their runs have an entropy bonus of 0.001, the default of their verl, which is left out. Rewards are 1 for
    a right answer and 0 for a wrong one; the formula is linear in between. `right` is the paper's lambda.
    """
    return right * rewards - wrong * (1 - rewards)
