"""Per-token estimator of KL(pi_behaviour || pi) = E_{y ~ pi_behaviour}[log pi_behaviour(y) - log pi(y)].

Source: J. Schulman, "Approximating KL Divergence", http://joschu.net/blog/kl-approx.html, with p = pi
and q = pi_behaviour, from which the tokens were sampled. The estimate is the mean over the tokens. The other
direction, KL(pi || pi_behaviour), would need tokens sampled from pi.
"""

from __future__ import annotations

import torch
from torch import Tensor


def k3(log_ratio: Tensor) -> Tensor:
    """Returns (r - 1) - log r in nats: never negative, unbiased, of low variance.

    Args:
        log_ratio: log r = log pi(y) - log pi_behaviour(y) in nats, any shape; the result has the same.
    """
    return torch.expm1(log_ratio) - log_ratio  # expm1: for r close to 1, r - 1 would lose all digits
