"""Disagreement between rollout engine and trainer about tokens that the same weights sampled and scored."""

from __future__ import annotations

import torch
from torch import Tensor

from bapo_lightning.objectives.divergence import k3


@torch.no_grad()
def mismatch(logp: Tensor, behaviour_logp: Tensor) -> dict[str, Tensor]:
    """Returns statistics of d = log pi_trainer - log pi_engine by name, 0-dim.

    abs_logp_diff_mean, abs_logp_diff_max: mean and maximum of |d|, nats.
    logp_diff_mean: mean of d, nats. Its expectation is -KL(engine || trainer) <= 0 if the engine reports the
        distribution that it samples from. A value clearly above 0 shows that it reports another one, such as
        log-probs before the temperature.
    ratio_max: largest exp(d).
    kl: k3 estimate of KL(engine || trainer), nats.

    Args:
        logp: the trainer's log-probs of the sampled tokens, at the sampling temperature, [N] nats, N >= 1.
        behaviour_logp: the engine's, [N] nats.
    """
    difference = logp - behaviour_logp
    return {
        "abs_logp_diff_mean": difference.abs().mean(),
        "abs_logp_diff_max": difference.abs().max(),
        "logp_diff_mean": difference.mean(),
        "ratio_max": difference.exp().max(),
        "kl": k3(difference).mean(),
    }
