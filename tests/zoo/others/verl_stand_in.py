"""In the place of verl's modules that its CPU tests of advantages, losses and corrections import: our code.

Two functions stay verl's own, taken from the checkout: the vectorised advantages that ours are compared with.
"""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from types import SimpleNamespace
from typing import Any

import numpy as np
from ours import (
    Measures,
    NotHere,
    Options,
    bounded,
    estimator,
    not_here,
    rloo,
    stand_in,
    table,
    taken_from,
    token_losses,
)
from torch import Tensor

from bapo_lightning.algorithms.dro import dro
from bapo_lightning.objectives.advantages.group import group_advantages
from bapo_lightning.objectives.corrections.responses import sequence_masked, sequence_truncated_is
from bapo_lightning.objectives.corrections.tokens import (
    effective_sample_size,
    masked_is,
    truncated_is,
    unweighted,
)
from bapo_lightning.objectives.divergence import mismatch
from bapo_lightning.objectives.objective import clip
from bapo_lightning.objectives.token_table import TokenTable
from bapo_lightning.objectives.weighting import token_mean

DUAL_CLIP = 3.0  # verl's default
LEVELS = {"seq_sum_k1": "product", "seq_mean_k1": "geometric"}
NAMES = (*LEVELS, "token_k1", "token_k2", "token_k3")
NAMES += ("seq_sum_k2", "seq_sum_k3", "seq_mean_k2", "seq_mean_k3", "seq_max_k2", "seq_max_k3")


def agg_loss(loss_mat: Tensor, loss_mask: Tensor, loss_agg_mode: str, dp_size: int = 1) -> Tensor:
    """Returns the sum of tokens, times the number of ranks over which verl averages, 0-dim."""
    assert loss_agg_mode == "token-sum", "`make setup-verl` compares the others"
    return (token_mean(loss_mask, 1 / dp_size) * loss_mat).sum()


def mean_over_tokens(losses: Tensor, mask: Tensor) -> Tensor:
    """Returns the mean over the tokens of a mask, 0-dim."""
    return (token_mean(mask, mask.sum()) * losses).sum()


def compute_policy_loss_vanilla(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str,
    config: Any,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Returns PPO-clip's loss with a dual clip, 0-dim."""
    tokens = bounded(table(log_prob, old_log_prob, advantages, response_mask), 0.8, 1.2)
    losses = token_losses(lambda tokens: clip(tokens, DUAL_CLIP), tokens, log_prob)
    if rollout_is_weights is not None:
        losses = losses * rollout_is_weights
    return mean_over_tokens(losses, response_mask), {}


def compute_policy_loss_dro(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str,
    config: Any,
) -> tuple[Tensor, dict[str, float]]:
    """Returns DRO's loss, 0-dim. Its value has A log pi where ours has A log r: a constant between both."""
    beta = config.policy_loss.dro_beta
    if not beta:
        raise ValueError("dro_beta must be positive")
    losses = token_losses(
        lambda tokens: dro(tokens, beta=beta),
        table(log_prob, old_log_prob, advantages, response_mask),
        log_prob,
    )
    losses = losses - advantages * old_log_prob
    return mean_over_tokens(losses, response_mask), {}


def weights_of(tokens: TokenTable, level: str, threshold: str | float) -> Tensor:
    """Returns the weights of tokens, [N]; a threshold is a cap, or two bounds."""
    if isinstance(threshold, bool):
        not_here("a check of verl's options")
    if isinstance(threshold, str):
        low, high = map(float, threshold.split("_"))
        return masked_is(tokens, low, high)
    return truncated_is(tokens, threshold) if level == "token" else sequence_truncated_is(tokens, threshold)


def kept_by(tokens: TokenTable, option: str, threshold: str | float) -> Tensor:
    """Returns 1 for tokens that an option keeps, else 0, [N]. verl bounds the inverse of our gap."""
    if not option.endswith("k1"):
        not_here(f"there is no mask by {option}")
    bounds = threshold.split("_") if isinstance(threshold, str) else (1 / threshold, threshold)
    low, high = (1 / float(bound) for bound in reversed(list(bounds)))
    if option == "token_k1":
        return (masked_is(tokens, low, high) > 0).float()
    return sequence_masked(tokens, low, high, LEVELS[option])


def compute_rollout_correction_and_rejection_mask(
    old_log_prob: Tensor,
    rollout_log_prob: Tensor,
    response_mask: Tensor,
    rollout_is: str | None = None,
    rollout_is_threshold: str | float = 2.0,
    rollout_rs: str | None = None,
    rollout_rs_threshold: str | float | None = None,
) -> tuple[Any, Tensor, Measures]:
    """Returns weights or None, the mask of tokens that are kept, and what we measure of both."""
    tokens = table(old_log_prob, old_log_prob, mask=response_mask, sampled=rollout_log_prob)
    there = tokens.count > 0
    found = compute_offpolicy_metrics(old_log_prob, rollout_log_prob, response_mask)
    kept, weights = unweighted(tokens), None
    if rollout_is is not None:
        weights = weights_of(tokens, rollout_is, rollout_is_threshold)
        own = weights[there]
        found |= {f"rollout_is_{name}": float(getattr(own, name)()) for name in ("mean", "max", "min")}
        found["rollout_is_std"] = float(own.std(correction=0))
        found["rollout_is_eff_sample_size"] = float(effective_sample_size(own))
        found["rollout_is_oob_ratio"] = float((own == 0).float().mean())
    thresholds = str(rollout_rs_threshold).split(",")
    for option, threshold in zip((rollout_rs or "").split(","), thresholds, strict=True):
        if option:
            of_it = kept_by(tokens, option, threshold if "_" in threshold else float(threshold))
            found[f"rollout_rs_{option}_mean"] = float(of_it[there].mean())
            kept = kept * of_it
    found["rollout_rs_masked_fraction"] = 1 - float(kept[there].mean())
    measures = Measures({f"rollout_corr/{name}": value for name, value in found.items()})
    mask = response_mask * kept.view_as(response_mask)
    return None if weights is None else batch_of(weights.view_as(old_log_prob)), mask, measures


def compute_offpolicy_metrics(
    old_log_prob: Tensor, rollout_log_prob: Tensor | None, response_mask: Tensor
) -> Measures:
    """Returns both estimates of KL(engine || trainer), in nats."""
    if rollout_log_prob is None:
        return Measures()
    there = response_mask.bool()
    found = mismatch(old_log_prob[there], rollout_log_prob[there])
    return Measures({"kl": -float(found["logp_diff_mean"]), "k3_kl": float(found["kl"])})


class DataProto(SimpleNamespace):
    """Columns of a batch."""

    batch: dict[str, Tensor]


def batch_of(weights: Tensor) -> DataProto:
    """Returns the batch in which verl hands weights over."""
    return DataProto(batch={"rollout_is_weights": weights})


def vectorised() -> list[Any]:
    """Returns verl's own vectorised advantages of GRPO and RLOO, with its own sums over groups."""
    stand_in("verl.utils.device", get_device_name=lambda: "cpu")
    spec = spec_from_file_location("groupwise", "verl/utils/groupwise.py")
    assert spec and spec.loader
    groupwise = module_from_spec(spec)
    spec.loader.exec_module(groupwise)
    names = (f"compute_{name}_vectorized_outcome_advantage" for name in ("grpo", "rloo"))
    known = {name: getattr(groupwise, name) for name in ("as_torch_index", "group_mean_std")}
    return taken_from("verl/trainer/ppo/core_algos.py", *names, np=np, **known)


REGISTRY = NotHere("verl's registry of advantages")
grpo_vectorised, rloo_vectorised = vectorised()
stand_in(
    "verl.trainer.ppo.core_algos", ADV_ESTIMATOR_REGISTRY=REGISTRY, register_adv_est=REGISTRY,
    get_adv_estimator_fn=REGISTRY, agg_loss=agg_loss,
    compute_gae_advantage_return=NotHere("there is no critic of tokens"),
    compute_grpo_outcome_advantage=estimator(group_advantages),
    compute_grpo_vectorized_outcome_advantage=grpo_vectorised,
    compute_policy_loss_dro=compute_policy_loss_dro, compute_policy_loss_vanilla=compute_policy_loss_vanilla,
    compute_rloo_outcome_advantage=estimator(rloo), compute_rloo_vectorized_outcome_advantage=rloo_vectorised,
    kl_penalty=NotHere("there is no KL penalty with the gradient of another estimate"),
)  # fmt: skip
stand_in(
    "verl.trainer.ppo.rollout_corr_helper",
    SUPPORTED_ROLLOUT_RS_OPTIONS=frozenset(NAMES),
    compute_is_metrics=NotHere("shares of responses by their mean weight are not measured here"),
    compute_offpolicy_metrics=compute_offpolicy_metrics,
    compute_rollout_correction_and_rejection_mask=compute_rollout_correction_and_rejection_mask,
)
stand_in("verl.trainer.config.algorithm", RolloutCorrectionConfig=NotHere("verl's configuration"))
stand_in("verl.workers.config.actor", ActorConfig=Options, PolicyLossConfig=Options)
stand_in("verl.protocol", DataProto=DataProto)
