"""Losses of this package in verl: `python examples/verl_policy_loss.py`, in verl's environment.

verl finds a loss by its name, `actor_rollout_ref.actor.policy_loss.loss_mode=bapo_lightning/bapo`, where this
module is imported: with its folder in PYTHONPATH and VERL_USE_EXTERNAL_MODULES=verl_policy_loss. It calls a
loss with one micro-batch and steps after several, so that bounds are searched over each micro-batch, of all
ranks; they are those of the update where `ppo_micro_batch_size_per_gpu` is a rank's whole share of it.
"""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import get_policy_loss_fn, register_policy_loss

from bapo_lightning.losses import policy_loss


def register(algorithm: str, *overrides: str) -> None:
    """Makes the loss of an algorithm known to verl, as `bapo_lightning/<algorithm>`. Tokens are averaged as
    the algorithm says, not by `loss_agg_mode`, over those of the whole mini-batch where verl gives their
    number.
    """
    own = policy_loss(algorithm, *overrides)

    @register_policy_loss(f"bapo_lightning/{algorithm}")
    def loss_of_micro_batch(
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        facts = getattr(config, "global_batch_info", {})
        counts = {
            "num_tokens": facts.get("batch_num_tokens"),
            "num_sequences": facts.get("global_batch_size"),
        }
        # verl averages gradients over ranks, so that each divides by the mean of their counts.
        known = {name: count / facts["dp_size"] for name, count in counts.items() if count is not None}
        if rollout_is_weights is not None:
            known["correction"] = rollout_is_weights
        loss, numbers = own(log_prob, old_log_prob, advantages, response_mask, **known)
        return loss, {f"actor/{name}": float(value) for name, value in numbers.items()}


register("bapo")
register("dapo", "algorithm.objective.dual_clip=3.0")  # as in verl


def main() -> None:
    """Both on tokens of a policy that has moved; DAPO beside verl's own loss with its bounds."""
    torch.manual_seed(0)
    old, mask = -2 * torch.rand(8, 16), (torch.rand(8, 16) < 0.9).float()
    logp = (old + 0.3 * torch.randn(8, 16)).requires_grad_()
    given = (old, logp, torch.randn(8, 1).expand(8, 16), mask)
    loss, numbers = get_policy_loss_fn("bapo_lightning/bapo")(*given)
    print(f"bapo loss {loss.detach():.6f}  {numbers}")
    info = {"dp_size": 1, "batch_num_tokens": mask.sum(), "global_batch_size": 8, "loss_scale_factor": None}
    config = SimpleNamespace(
        clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.28, global_batch_info=info, get=lambda *_: 3.0
    )
    for name in ("bapo_lightning/dapo", "vanilla"):
        loss, _ = get_policy_loss_fn(name)(*given, config=config)
        (gradient,) = torch.autograd.grad(loss, logp)
        print(f"{name:20} loss {loss.detach():.6f}  gradient {gradient.norm():.6f}")


if __name__ == "__main__":
    main()
