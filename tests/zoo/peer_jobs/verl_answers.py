"""verl's own losses, advantages and rollout corrections on the job in a file; runs in verl's environment
(`make setup-verl`).

    .venv-verl/bin/python tests/zoo/peer_jobs/verl_answers.py JOB ANSWERS

A micro-batch's loss is told the sizes of the whole minibatch, as `verl.workers.utils.losses.ppo_loss` tells
it, and the gradients of micro-batches are added up, as its engines do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import verl
from answers import Table, answer
from torch import Tensor
from verl.trainer.config import AlgoConfig, RolloutCorrectionConfig
from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask
from verl.workers.config import ActorConfig
from verl.workers.config.actor import PolicyLossConfig


def loss(part: Table, options: dict[str, Any], parts: int, whole: Table) -> Tensor:
    """Returns the registered loss `loss_mode` of a micro-batch."""
    options = dict(options)
    policy_loss = dict(options.pop("policy_loss"))
    if "rollout_correction" in policy_loss:
        policy_loss["rollout_correction"] = RolloutCorrectionConfig(**policy_loss["rollout_correction"])
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        policy_loss=PolicyLossConfig(**policy_loss),
        **options,
    )
    config.global_batch_info.update(
        dp_size=1,
        batch_num_tokens=int(whole["mask"].sum()),
        global_batch_size=len(whole["mask"]),
        loss_scale_factor=config.loss_scale_factor,
    )
    found, _ = get_policy_loss_fn(policy_loss["loss_mode"])(
        old_log_prob=part["proximal_logp"],
        log_prob=part["logp"],
        advantages=part["advantage"],
        response_mask=part["mask"].bool(),
        loss_agg_mode=config.loss_agg_mode,
        config=config,
    )
    return found


def factor(table: Table, options: dict[str, Any]) -> Tensor:
    """Returns the weights of a rollout correction, times its mask, [B, T]."""
    weights, mask, _ = compute_rollout_correction_and_rejection_mask(
        old_log_prob=table["proximal_logp"],
        rollout_log_prob=table["behaviour_logp"],
        response_mask=table["mask"],
        **options,
    )
    return mask if weights is None else weights.batch["rollout_is_weights"] * mask


def advantage(table: Table, options: dict[str, Any]) -> Tensor:
    """Returns the estimator `name`'s advantages of responses whose reward is at their last token, [P, G]."""
    own = dict(options)
    estimate: Callable[..., Any] = get_adv_estimator_fn(own.pop("name"))
    rewards, lengths = table["rewards"], table["lengths"].long().flatten()
    mask = (torch.arange(int(lengths.max())) < lengths[:, None]).to(rewards.dtype)
    scores = torch.zeros_like(mask)
    scores[torch.arange(len(lengths)), lengths - 1] = rewards.flatten()
    found, _ = estimate(
        token_level_rewards=scores,
        response_mask=mask,
        index=np.arange(len(rewards)).repeat(rewards.shape[1]),
        config=AlgoConfig(),
        **own,
    )
    return found[:, 0].view_as(rewards)


if __name__ == "__main__":
    answer(verl.__version__, loss, {"factor": factor, "advantage": advantage})
