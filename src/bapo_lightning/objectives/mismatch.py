"""How far rollout engine and trainer disagree about tokens that the same weights sampled and scored."""

from __future__ import annotations

import torch
from torch import Tensor

from bapo_lightning.objectives.divergence import k3


@torch.no_grad()
def mismatch(logp: Tensor, behaviour_logp: Tensor) -> dict[str, Tensor]:
    """Statistics of d = log pi_trainer - log pi_engine, by name, 0-dim.

    abs_logp_diff_mean, abs_logp_diff_max: of |d|, nats.
    logp_diff_mean: of d, nats. Its expectation is -KL(engine || trainer) <= 0 if the engine reports what it
        samples from; clearly above 0 it reports something else, such as log-probs before the temperature.
    ratio_max: largest exp(d).
    kl: k3 estimate of KL(engine || trainer), nats.

    Args:
        logp: log-probs of the sampled tokens by the trainer, at the sampling temperature, [N] nats, N >= 1.
        behaviour_logp: by the engine, [N] nats.
    """
    difference = logp - behaviour_logp
    return {
        "abs_logp_diff_mean": difference.abs().mean(),
        "abs_logp_diff_max": difference.abs().max(),
        "logp_diff_mean": difference.mean(),
        "ratio_max": difference.exp().max(),
        "kl": k3(difference).mean(),
    }
