"""TRL's own losses, corrections and advantages on the job in a file; runs in TRL's environment (`make
setup-trl`).

    .venv-trl/bin/python tests/zoo/peer_jobs/trl_answers.py JOB ANSWERS

`GRPOTrainer._compute_loss` and `_generate_and_score_completions` run unchanged on a trainer without a model:
log-probs, entropies, completions and rewards are those of the job.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch
import trl
from accelerate import Accelerator
from answers import Table, answer
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer

FOLDER = tempfile.gettempdir()  # nothing is written into it
# Attributes of a trainer that are its arguments of the same name.
SAME = (
    "beta", "entropy_coef", "importance_sampling_level", "loss_type", "mask_truncated_completions",
    "max_completion_length", "multi_objective_aggregation", "num_generations", "num_iterations",
    "off_policy_mask_threshold", "pad_to_multiple_of", "scale_rewards", "top_entropy_quantile",
    "use_adaptive_entropy", "use_vllm", "vllm_importance_sampling_clip_max",
    "vllm_importance_sampling_clip_min", "vllm_importance_sampling_correction",
    "vllm_importance_sampling_mode",
)  # fmt: skip


def trainer(options: dict[str, Any], parts: int) -> Any:
    """Returns a trainer with options of GRPOConfig, of an update over some micro-batches, without a model."""
    arguments = GRPOConfig(
        output_dir=FOLDER, use_cpu=True, bf16=False, report_to="none", num_generations=4,
        per_device_train_batch_size=20 // parts, gradient_accumulation_steps=parts, **options,
    )  # fmt: skip
    made = object.__new__(GRPOTrainer)
    vars(made).update(
        {name: getattr(arguments, name) for name in SAME}, args=arguments,
        model=SimpleNamespace(training=True, is_gradient_checkpointing=False),
        accelerator=Accelerator(cpu=True), current_gradient_accumulation_steps=parts,
        epsilon_low=arguments.epsilon,
        epsilon_high=arguments.epsilon if arguments.epsilon_high is None else arguments.epsilon_high,
        aux_loss_enabled=False, _entropy_bonus_enabled=arguments.entropy_coef != 0,
        _metrics=defaultdict(lambda: defaultdict(list)),
    )  # fmt: skip
    return made


def loss(part: Table, options: dict[str, Any], parts: int, whole: Table) -> Tensor:
    """Returns the loss of a micro-batch."""
    made, ids = trainer(options, parts), part["mask"].long()
    made._get_per_token_logps_and_entropies = lambda *_, **__: (part["logp"], part["entropy"], None)
    inputs = {
        "prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1], "completion_ids": ids, "completion_mask": ids,
        "advantages": part["advantage"][:, 0], "old_per_token_logps": part["proximal_logp"],
        "sampling_per_token_logps": part["behaviour_logp"], "num_items_in_batch": whole["mask"].sum(),
    }  # fmt: skip
    return made._compute_loss(made.model, inputs)


def scored(table: Table, options: dict[str, Any], rewards: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Returns what a rollout batch becomes: responses of these masks [B, T] and rewards [B]."""
    made, lengths = trainer(options, 1), mask.sum(1).long().tolist()
    ids = [[1] * length for length in lengths]
    logps = [row[:length].tolist() for row, length in zip(table["behaviour_logp"], lengths, strict=True)]
    made.reward_funcs, made.reward_func_names = [len], ["reward"]
    made.reward_weights = torch.ones(1)
    made._generate = lambda prompts: ([[1]] * len(ids), ids, None, prompts, logps, {}, None, None)
    made._get_per_token_logps_and_entropies = lambda *_, **__: (table["proximal_logp"], None, None)
    made._calculate_rewards = lambda *_: rewards[:, None]
    made.environments, made.environment_factories, made.tools, made._is_vlm = None, None, [], False
    made._tokenizer = SimpleNamespace(pad_token_id=0)
    made._logs = defaultdict(list, rewards=defaultdict(list), extra=defaultdict(list))
    made._pending_extra_logs, made._pending_metrics = {}, {}
    return made._generate_and_score_completions([{"prompt": "1"} for _ in ids])


def factor(table: Table, options: dict[str, Any]) -> Tensor:
    """Returns the importance sampling ratio of a rollout batch by vLLM, [B, T]."""
    found = scored(table, {"use_vllm": True, **options}, table["mask"][:, 0], table["mask"])
    return found["importance_sampling_ratio"].expand_as(table["mask"]) * table["mask"]


def advantage(table: Table, options: dict[str, Any]) -> Tensor:
    """Returns the advantages of groups of rewards, [P, G]."""
    rewards = table["rewards"]
    found = scored(table, options, rewards.flatten(), table["mask"][: rewards.numel()])
    return found["advantages"].view_as(rewards)


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)  # of the log-probs that TRL makes tensors of
    answer(trl.__version__, loss, {"factor": factor, "advantage": advantage})
