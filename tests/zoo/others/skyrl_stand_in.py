"""In the place of SkyRL's modules that its tests of losses and off-policy corrections import: our code.

Their metrics of how many tokens or responses were cut are counted here, from our weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
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

from bapo_lightning.algorithms.cispo import cispo
from bapo_lightning.algorithms.clip_cov import ClipCov
from bapo_lightning.algorithms.dppo import dppo
from bapo_lightning.algorithms.gspo import gspo
from bapo_lightning.algorithms.kl_cov import KLCov
from bapo_lightning.algorithms.maxrl import maxrl
from bapo_lightning.algorithms.sapo import sapo
from bapo_lightning.objectives.advantages.group import group_advantages
from bapo_lightning.objectives.corrections.responses import (
    outlier_mask,
    sequence_masked,
    sequence_truncated_is,
)
from bapo_lightning.objectives.corrections.tokens import engine_gap, masked_is, response_gap, truncated_is
from bapo_lightning.objectives.divergence import k3
from bapo_lightning.objectives.objective import clip, slopes
from bapo_lightning.objectives.surrogate import clipped_fractions
from bapo_lightning.objectives.token_table import TokenTable
from bapo_lightning.objectives.weighting import fixed_length, sequence_mean, token_mean

Found = tuple[Tensor, dict[str, float]]
OPTIONS = "a check of SkyRL's options"
REGISTRIES = "SkyRL's registries of functions"
REGISTRY = NotHere(REGISTRIES)
NO_CRITIC = NotHere("there is no critic of tokens")
NO_CONTROLLER = NotHere("there is no controlled KL penalty")
(masked_mean,) = taken_from("skyrl/backends/skyrl_train/utils/torch_utils.py", "masked_mean")


def gaps(old_log_probs: Tensor, rollout_logprobs: Tensor, loss_mask: Tensor) -> TokenTable:
    """Returns the table of a batch, of which a correction reads the gap of engine and trainer."""
    return table(old_log_probs, old_log_probs, mask=loss_mask, sampled=rollout_logprobs)


def bound(limit: float | None, unset: float) -> float:
    """Returns a limit, which may be unset."""
    return unset if limit is None else limit


def share(of: Tensor, tokens: TokenTable) -> float:
    """Returns the share of a table's tokens."""
    return float(of[tokens.count > 0].float().mean())


def share_of_responses(of: Tensor, like: Tensor) -> float:
    """Returns the share of responses with any such token, [B, T] as `like`."""
    return float(of.view_as(like).any(-1).float().mean())


def compute_tis_ratio(old: Tensor, rollout: Tensor, mask: Tensor, kind: str, config: Options) -> Found:
    """Returns truncated weights, [B, T], or [B, 1] of responses."""
    tokens = gaps(old, rollout, mask)
    if kind == "token":
        cap = config.token_tis_ratio_clip_high
        weights = truncated_is(tokens, cap)
        cut = share(weights < engine_gap(tokens), tokens)
        return weights.view_as(old), {"tis_token_clip_high_ratio": cut}
    if kind != "sequence":
        not_here(OPTIONS)
    weights = sequence_truncated_is(tokens, config.sequence_tis_ratio_clip_high)
    cut = share_of_responses(weights < response_gap(tokens), old)
    return weights.view_as(old)[:, :1], {"tis_seq_clip_high_ratio": cut}


def compute_sequence_mask(old: Tensor, rollout: Tensor, mask: Tensor, kind: str, config: Options) -> Found:
    """Returns 1 for responses that are kept, [B, 1]."""
    short = {"geometric": "geo", "product": "product"}.get(kind) or not_here(OPTIONS)
    low, high = (getattr(config, f"{short}_mask_{end}") for end in ("low", "high"))
    tokens = gaps(old, rollout, mask)
    kept, gap = sequence_masked(tokens, low, high, kind), response_gap(tokens, kind)
    cut = {"masked": kept == 0, "over_high": (kept == 0) & (gap > 1), "under_low": (kept == 0) & (gap < 1)}
    found = {
        f"{short}_sequence_mask_{name}_ratio": share_of_responses(each, old) for name, each in cut.items()
    }
    return kept.view_as(old)[:, :1], found


def compute_outlier_token_mask(old: Tensor, rollout: Tensor, mask: Tensor, config: Options) -> Found:
    """Returns 1 for responses without an outlier, [B, 1]; of those with some, which side they were on."""
    tokens = gaps(old, rollout, mask)
    low = bound(config.outlier_token_is_threshold_low, 0.0)
    high = bound(config.outlier_token_is_threshold_high, torch.inf)
    kept = outlier_mask(tokens, low, high)
    sides = {
        "masked": kept,
        "over_high": outlier_mask(tokens, 0.0, high),
        "under_low": outlier_mask(tokens, low, torch.inf),
    }
    name = "outlier_seq_{}_ratio".format
    found = {name(side): share_of_responses(kept_by == 0, old) for side, kept_by in sides.items()}
    return kept.view_as(old)[:, :1], found


def compute_token_mask(old: Tensor, rollout: Tensor, mask: Tensor, config: Options) -> Found:
    """Returns 1 for tokens within the bounds, and for those that were masked before, [B, T]."""
    tokens = gaps(old, rollout, mask)
    low, high = config.token_mask_is_threshold_low, config.token_mask_is_threshold_high
    kept = masked_is(tokens, low, high) > 0
    found = (kept | (tokens.count == 0)).float()
    return found.view_as(old), {"token_mask_ratio": share(~kept, tokens)}


def compute_off_policy_correction(
    old: Tensor, rollout: Tensor, mask: Tensor, config: Options
) -> tuple[Tensor | None, Measures, Tensor]:
    """Returns weights or None, what their tests read, and the mask of tokens that are left."""
    tis, kind = config.tis_ratio_type, config.sequence_mask_metric
    outliers = (config.outlier_token_is_threshold_low, config.outlier_token_is_threshold_high)
    parts: list[Callable[[Tensor], Found]] = []
    if outliers != (None, None):
        parts.append(lambda left: compute_outlier_token_mask(old, rollout, left, config))
    if config.token_mask_is_threshold_low is not None:
        parts.append(lambda left: compute_token_mask(old, rollout, left, config))
    if kind is not None:
        parts.append(lambda left: compute_sequence_mask(old, rollout, left, kind, config))
    found, weights = Measures(), None
    if tis is not None:
        weights, own = compute_tis_ratio(old, rollout, mask, tis, config)
        found |= own
    for part in parts:
        kept, own = part(mask)
        mask, found = mask * kept, Measures(found | own)
    if found:
        tokens = gaps(old, rollout, mask)
        found["is_ratio_mean"] = float(engine_gap(tokens).mean())
    return weights, found, mask


def policy_loss(
    kind: str,
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    config: Options,
    loss_mask: Tensor | None = None,
    rollout_logprobs: Tensor | None = None,
) -> tuple[Tensor, Measures]:
    """Returns the sum of a loss over tokens, 0-dim, and what their tests read of it."""
    off_policy = config.off_policy_correction or Options()
    from_rollout = config.cispo is not None and config.cispo.cispo_anchor == "rollout"
    if from_rollout and (rollout_logprobs is None or off_policy.tis_ratio_type):
        not_here(OPTIONS)
    anchor = old_log_probs
    if rollout_logprobs is not None and (from_rollout or kind == "dppo"):
        anchor = rollout_logprobs
    mask = torch.ones_like(log_probs) if loss_mask is None else loss_mask
    tokens = table(log_probs, anchor, advantages, mask)
    objective, low, high = objective_of(kind, config)
    tokens = bounded(tokens, low, high)
    losses = token_losses(objective, tokens, log_probs)
    there = tokens.count > 0
    found = Measures({"clip_ratio": 0.0})
    if kind == "cispo":
        ratio = tokens.ratio[there]
        found |= {f"cispo/ratio_{name}": float(getattr(ratio, name)()) for name in ("mean", "max", "min")}
        found["cispo/ratio_clamped_mean"] = float(ratio.clamp(low, high).mean())
    elif kind not in ("clip_cov", "kl_cov"):  # which prepare the whole update
        slope = slopes(objective, tokens)
        found["clip_ratio"] = float(clipped_fractions(slope, tokens.advantage, tokens.count)[0])
        if kind == "dppo":  # theirs has the same gradient and another value: r A
            losses = -(slope * tokens.ratio).view_as(log_probs)
    if rollout_logprobs is not None:
        weights, _, mask = compute_off_policy_correction(old_log_probs, rollout_logprobs, mask, off_policy)
        losses = losses if weights is None else losses * weights
    return reduce_loss(losses, mask), found


def objective_of(kind: str, config: Options) -> tuple[Any, float, float]:
    """Returns our objective of their name and options, and the bounds of the ratio."""
    low, high = 1 - bound(config.eps_clip_low, 0.2), 1 + bound(config.eps_clip_high, 0.2)
    if kind == "cispo":
        own = config.cispo
        low, high = 1 - own.cispo_eps_clip_low, 1 + own.cispo_eps_clip_high
        # The value of theirs has log pi where ours has log r.
        return lambda tokens: cispo(replace(tokens, log_ratio=tokens.logp)), low, high
    if kind == "clip_cov":
        own = config.clip_cov
        return ClipCov(own.clip_ratio, own.clip_cov_lb, own.clip_cov_ub), low, high
    if kind == "kl_cov":
        return KLCov(config.kl_cov.ppo_kl_coef, config.kl_cov.kl_cov_frac), low, high
    if kind == "sapo":
        return partial(sapo, positive=config.sapo.tau_pos, negative=config.sapo.tau_neg), low, high
    if kind == "dppo":
        own = config.dppo
        divergence = own.dppo_type.removeprefix("binary_")
        return (
            partial(dppo, divergence=divergence, low=own.delta_low, high=own.delta_high, cap=None),
            low,
            high,
        )
    dual_clip = config.clip_ratio_c if kind == "dual_clip" else None
    return {"gspo": gspo}.get(kind, partial(clip, dual_clip=dual_clip)), low, high


def reduce_loss(loss: Tensor, loss_mask: Tensor | None) -> Tensor:
    """Returns the sum over tokens, 0-dim."""
    mask = torch.ones_like(loss) if loss_mask is None else loss_mask
    return (token_mean(mask, 1) * loss).sum()


def apply_loss_reduction_to_advantages_minibatch(
    advantages: Tensor, loss_mask: Tensor, loss_reduction: str, max_seq_len: int, **_: Any
) -> Tensor:
    """Returns advantages times our weights, so that their sum is the mean, [B, T]."""
    if loss_reduction not in ("token_mean", "sequence_mean", "seq_mean_token_sum_norm"):
        not_here(f"there is no mean of the kind {loss_reduction}")
    if not loss_mask.any():
        not_here("a minibatch without tokens is refused here")
    if loss_reduction == "token_mean":
        return advantages * token_mean(loss_mask, loss_mask.sum())
    if loss_reduction == "sequence_mean":
        return advantages * sequence_mean(loss_mask, len(loss_mask))
    return advantages * fixed_length(loss_mask, len(loss_mask), max_seq_len)


def compute_approx_kl(
    log_probs: Tensor, log_probs_base: Tensor, loss_mask: Tensor | None, kl_estimator_type: str
) -> Tensor:
    """Returns k3 times the mask, [B, T]."""
    if kl_estimator_type != "k3":
        not_here(f"there is no estimate {kl_estimator_type} of a KL divergence")
    mask = torch.ones_like(log_probs) if loss_mask is None else loss_mask
    return torch.where(mask > 0, k3(log_probs_base - log_probs), 0.0) * mask


def grpo(grpo_norm_by_std: bool = True, **batch: Any) -> tuple[Tensor, Tensor]:
    """Returns advantages within groups, [B, T], twice."""
    return estimator(partial(group_advantages, scale="std" if grpo_norm_by_std else "none"))(**batch)


def checked_cispo(cispo_anchor: str = "old", **options: Any) -> Options:
    """Returns the options of CISPO."""
    if cispo_anchor not in ("old", "rollout"):
        not_here(OPTIONS)
    return Options(cispo_anchor=cispo_anchor, **options)


class Registry(NotHere):
    """Their registry of advantages, which tests can do nothing with."""

    @staticmethod
    def repopulate_registry() -> None:
        """Does nothing, after the last test of a file."""


class Losses(Registry):
    """Their registry of losses, which gives ours by name."""

    @staticmethod
    def get(name: str) -> Callable[..., tuple[Tensor, Measures]]:
        """Returns a loss."""
        return partial(policy_loss, name)


UTILS = "skyrl.backends.skyrl_train.utils"
stand_in(
    f"{UTILS}.off_policy_correction_utils", compute_off_policy_correction=compute_off_policy_correction,
    compute_outlier_token_mask=compute_outlier_token_mask, compute_sequence_mask=compute_sequence_mask,
    compute_tis_ratio=compute_tis_ratio, compute_token_mask=compute_token_mask,
)  # fmt: skip
stand_in(
    f"{UTILS}.ppo_utils", AdaptiveKLController=NO_CONTROLLER, AdvantageEstimatorRegistry=Registry(REGISTRIES),
    FixedKLController=NO_CONTROLLER, PolicyLossRegistry=Losses(REGISTRIES),
    apply_loss_reduction_to_advantages_minibatch=apply_loss_reduction_to_advantages_minibatch,
    compute_advantages_and_returns=REGISTRY, compute_approx_kl=compute_approx_kl,
    compute_gae_advantage_return=NO_CRITIC, compute_grpo_outcome_advantage=grpo,
    compute_maxrl_advantage=estimator(maxrl),
    compute_reinforce_plus_plus_outcome_advantage=NotHere("rewards are of responses, not of tokens"),
    compute_rloo_outcome_advantage=estimator(rloo), reduce_loss=reduce_loss,
    register_advantage_estimator=REGISTRY, register_policy_loss=REGISTRY,
)  # fmt: skip
stand_in(f"{UTILS}.torch_utils", masked_mean=masked_mean)
NAMES = ("Algorithm", "ClipCov", "DPPO", "KLCov", "OffPolicyCorrection", "SAPO")
stand_in("skyrl.train.config", CISPOConfig=checked_cispo, **{f"{name}Config": Options for name in NAMES})
stand_in("ray", init=REGISTRY, is_initialized=REGISTRY, shutdown=REGISTRY)
