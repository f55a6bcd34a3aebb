"""Losses of algorithms for verl, as `policy_loss.loss_mode=bapo_lightning.bapo` of its actor: start verl with
VERL_USE_EXTERNAL_MODULES=verl_policy_loss and this folder in PYTHONPATH. `python
examples/verl_policy_loss.py`, in an environment with `verl` and `bapo-lightning`, prints their names.

verl calls a loss once for each micro-batch, right before its gradient, and bounds are searched over the
micro-batches that all ranks have at that time: over the update if there is one for each rank
(`ppo_micro_batch_size_per_gpu` is the share of `ppo_mini_batch_size`, `use_dynamic_bsz=false`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, register_policy_loss

from bapo_lightning.losses import policy_loss

PREFIX = "bapo_lightning."
# Name: overrides. `loss_agg_mode` is not read: tokens are weighted as the algorithm says.
ALGORITHMS: dict[str, tuple[str, ...]] = {
    "bapo": ("algorithm.positive_share_target=0.4",),
    "dapo": (),
    "cispo": (),
    "gspo": (),
}


def verl_loss(algorithm: str, *overrides: str) -> Callable[..., tuple[Tensor, dict[str, Any]]]:
    """Returns an algorithm's loss with verl's signature. `old_log_prob` is what ratios are taken to, so for
    BAPO it should be the engine's: `algorithm.rollout_correction.bypass_mode=true`.
    """
    own = policy_loss(algorithm, *overrides)

    def loss(
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Returns the loss of a micro-batch, 0-dim, and numbers to log; tensors are [B, T]."""
        facts = config.global_batch_info if config is not None else {}
        ranks = facts.get("dp_size") or 1  # whose gradients verl averages
        counts = {
            "num_tokens": facts.get("batch_num_tokens"),
            "num_sequences": facts.get("global_batch_size"),
        }
        known: dict[str, Any] = {name: count / ranks for name, count in counts.items() if count is not None}
        if rollout_is_weights is not None:
            known["correction"] = rollout_is_weights
        found, metrics = own(log_prob, old_log_prob, advantages, response_mask, **known)
        return found, {f"actor/{name}": float(value) for name, value in metrics.items()}

    return loss


for name, overrides in ALGORITHMS.items():
    register_policy_loss(PREFIX + name)(verl_loss(name, *overrides))

if __name__ == "__main__":
    print("\n".join(name for name in POLICY_LOSS_REGISTRY if name.startswith(PREFIX)))
