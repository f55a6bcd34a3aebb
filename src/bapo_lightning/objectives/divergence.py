"""Per-token estimators of KL(pi_behaviour || pi) = E_{y ~ pi_behaviour}[log pi_behaviour(y) - log pi(y)], in
nats.

Source: J. Schulman, "Approximating KL Divergence", http://joschu.net/blog/kl-approx.html, with q =
pi_behaviour (the tokens were sampled from it) and p = pi. All take log r = log pi(y) - log pi_behaviour(y),
any shape, and return the same shape; the estimate
is the mean over the tokens. The other direction, KL(pi || pi_behaviour), would need tokens sampled from pi.
"""

from __future__ import annotations

import torch
from torch import Tensor


def k1(log_ratio: Tensor) -> Tensor:
    """-log r: unbiased, but of either sign and high variance."""
    return -log_ratio


def k2(log_ratio: Tensor) -> Tensor:
    """(log r)^2 / 2: never negative, low variance, biased (an f-divergence that agrees with the KL to second
    order).
    """
    return 0.5 * log_ratio.square()


def k3(log_ratio: Tensor) -> Tensor:
    """(r - 1) - log r: never negative, unbiased, low variance."""
    return torch.expm1(log_ratio) - log_ratio  # expm1: for r close to 1, r - 1 would lose all digits
