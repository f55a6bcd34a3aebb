"""What of TRL and of verl is compared with which algorithm or correction of ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tests.zoo.algorithms import LONGEST_RESPONSE


@dataclass(frozen=True)
class Case:
    """A method of the peer beside ours, on the same table."""

    name: str  # what the peer calls it
    ours: str  # algorithm, or correction where `kind` is factor
    options: dict[str, Any]  # the peer's
    # what is compared: gradients of log-probs or of entropies, weights of tokens, advantages of groups
    kind: Literal["loss", "entropy", "factor", "advantage"] = "loss"
    overrides: tuple[str, ...] = ()  # of ours
    correction: tuple[str, ...] = ()  # of a loss: ours, and its overrides
    reading: str = ""  # how the peer's is another function of the whole update; empty: it is the same
    # what the peer takes of each micro-batch; empty: its gradient does not depend on the split
    split: str = ""


MEAN = "weighting._target_=bapo_lightning.objectives.weighting."
PER_RESPONSE = (f"{MEAN}sequence_mean",)


def _factor(name: str, ours: str, overrides: tuple[str, ...] = (), **options: Any) -> Case:
    return Case(name, ours, options, "factor", overrides)


def _advantage(name: str, ours: str, overrides: tuple[str, ...] = (), **options: Any) -> Case:
    return Case(name, ours, options, "advantage", overrides)


def _vllm(mode: str, ours: str, **clip: float) -> Case:
    bounds = {f"vllm_importance_sampling_clip_{end}": value for end, value in clip.items()}
    return Case(mode, ours, {"vllm_importance_sampling_mode": mode, **bounds}, "factor")


def _of_sequences(loss_type: str, epsilon: float, epsilon_high: float) -> dict[str, Any]:
    level = {"loss_type": loss_type, "importance_sampling_level": "sequence"}
    return {**level, "epsilon": epsilon, "epsilon_high": epsilon_high}


HIGHER = {"loss_type": "dapo", "epsilon_high": 0.28}
TRL = (
    Case("grpo", "grpo", {"loss_type": "grpo"}, overrides=PER_RESPONSE),
    Case("dapo", "dapo", HIGHER),
    Case("bnpo", "grpo", {"loss_type": "bnpo"}, split="its token mean"),
    Case("dr_grpo", "dr_grpo", {"loss_type": "dr_grpo", "max_completion_length": LONGEST_RESPONSE}),
    Case("delta", "grpo", {"loss_type": "dapo", "delta": 3.0}, overrides=("objective.dual_clip=3",)),
    Case("cispo", "cispo", {"loss_type": "cispo", "epsilon_high": 5.0}),
    Case("gspo", "gspo", _of_sequences("grpo", 3e-4, 4e-4)),
    Case("luspo", "luspo", _of_sequences("luspo", 2e-3, 2.5e-3)),
    Case("sapo", "sapo", {"loss_type": "sapo"}),
    Case("vespo", "vespo", {"loss_type": "vespo"}),
    Case("top_entropy_quantile", "top_entropy", HIGHER | {"top_entropy_quantile": 0.2},
         split="the quantile of its entropies"),
    Case("entropy_coef", "entropy_bonus", {"loss_type": "dapo", "entropy_coef": 0.005}, kind="entropy",
         overrides=("objective.start=0.005", "objective.target=100"), split="its mean entropy"),
    Case("off_policy_mask_threshold", "grpo", {"loss_type": "dapo", "off_policy_mask_threshold": 0.02},
         correction=("opsm", "weights.threshold=0.02")),
    _vllm("token_truncate", "truncated_is", max=2.0),
    _vllm("token_mask", "masked_is", min=0.5, max=5.0),
    _vllm("sequence_truncate", "sequence_truncated_is", max=5.0),
    _vllm("sequence_mask", "sequence_masked_is", min=0.5, max=2.0),
    _advantage("scale_rewards=group", "grpo", ("+advantages.eps=1e-4",)),
    _advantage("scale_rewards=none", "dr_grpo", scale_rewards="none"),
)  # fmt: skip


def _loss(mode: str, policy_loss: dict[str, Any] | None = None, **actor: Any) -> dict[str, Any]:
    return {"policy_loss": {"loss_mode": mode, **(policy_loss or {})}, **actor}


def _bypass(**correction: Any) -> dict[str, Any]:
    return _loss("bypass_mode", {"rollout_correction": {"loss_type": "reinforce", **correction}})


PER_SEQUENCE = {"loss_agg_mode": "seq-mean-token-mean"}
FIXED = {"loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": LONGEST_RESPONSE}
TRUNCATED = {"rollout_is": "token", "rollout_is_threshold": 1.0}
ALL_PICKED, FIFTH_PICKED = ("objective.share=1",), ("objective.share=0.2",)

VERL = (
    Case("vanilla", "grpo", _loss("vanilla"), overrides=("objective.dual_clip=3",)),
    Case("vanilla, seq-mean-token-mean", "grpo", _loss("vanilla", clip_ratio_c=1e9, **PER_SEQUENCE),
         overrides=PER_RESPONSE),
    Case("vanilla, seq-mean-token-sum-norm", "dr_grpo", _loss("vanilla", clip_ratio_c=1e9, **FIXED)),
    Case("vanilla, clip higher", "dapo", _loss("vanilla", clip_ratio_high=0.28, clip_ratio_c=1e9)),
    Case("vanilla, its defaults", "grpo", _loss("vanilla"), reading="clip_ratio_c is 3: a dual clip"),
    Case("gspo", "gspo", _loss("gspo", clip_ratio_low=3e-4, clip_ratio_high=4e-4, **PER_SEQUENCE)),
    Case("sapo", "sapo", _loss("sapo")), Case("gpg", "asymre", _loss("gpg")),
    Case("cispo", "cispo_verl", _loss("cispo")),
    Case("dppo_tv", "dppo", _loss("dppo_tv", clip_ratio_low=0.15, clip_ratio_high=0.15, clip_ratio_c=20.0)),
    Case("dppo_kl", "dppo_kl",
         _loss("dppo_kl", clip_ratio_low=0.05, clip_ratio_high=0.05, clip_ratio_c=20.0)),
    Case("dppo_tv, cap unset", "dppo", _loss("dppo_tv", clip_ratio_low=0.15, clip_ratio_high=0.15),
         reading="its cap is clip_ratio_c, 3 unless set"),
    Case("geo_mean", "gmpo", _loss("geo_mean", clip_ratio_low=0.4, clip_ratio_high=0.4),
         split="the mean of its responses, which are added up"),
    Case("dro", "dro", _loss("dro", {"dro_beta": 0.1})),
    Case("clip_cov", "clip_cov",
         _loss("clip_cov", {"clip_cov_ratio": 1.0}, clip_ratio_low=1.0, clip_ratio_high=1.0),
         overrides=ALL_PICKED, split="means of its covariance, and the pick"),
    Case("kl_cov", "kl_cov", _loss("kl_cov", {"kl_cov_ratio": 0.2, "ppo_kl_coef": 1.0}),
         overrides=FIFTH_PICKED, split="means of its covariance, and the pick"),
    Case("bypass_mode, reinforce", "tis", _bypass(**TRUNCATED)),
    Case("bypass_mode, batch_normalize", "tis", _bypass(rollout_is_batch_normalize=True, **TRUNCATED),
         reading="weights are divided by their mean", split="the mean of its weights"),
    _factor("rollout_is=token", "truncated_is", rollout_is="token"),
    _factor("rollout_is=token, icepop", "masked_is", rollout_is="token", rollout_is_threshold="0.5_5.0"),
    _factor("rollout_is=sequence", "sequence_truncated_is", rollout_is="sequence", rollout_is_threshold=5.0),
    _factor("rollout_rs=seq_mean_k1", "geometric_mask_verl", rollout_rs="seq_mean_k1",
            rollout_rs_threshold="0.999_1.001"),
    _factor("rollout_rs=seq_sum_k1", "sequence_masked_is", ("weights.weigh=false",), rollout_rs="seq_sum_k1",
            rollout_rs_threshold="0.5_2.0"),
    *(Case(name, ours, {"name": name}, "advantage")
      for name, ours in (
          ("grpo", "grpo"), ("rloo", "rloo"), ("opo", "opo"), ("reinforce_plus_plus", "reinforce_pp"),
          ("reinforce_plus_plus_baseline", "reinforce_pp_baseline"), ("grpo_passk", "pass_at_k"),
      )),
    Case("grpo, without deviation", "dr_grpo", {"name": "grpo", "norm_adv_by_std_in_grpo": False},
         kind="advantage"),
)  # fmt: skip
CASES = {"trl": TRL, "verl": VERL}
