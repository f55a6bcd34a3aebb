"""The keys that people change first, with the names that TRL and verl give them: the tables of the page
docs/thirty_keys.md, and for the suggestion after an unknown key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple


class CommonKey(NamedTuple):
    """A key of the command line: its purpose, and the names of the same setting elsewhere."""

    what: str
    key: str  # with a value if the key alone says too little
    trl: str  # names separated by spaces; the page shows the first ones
    verl: str
    others: str = ""  # of other programs, and names that people guess


THIRTY_KEYS = (
    CommonKey("number of steps: rollout batches", "scale.num_rollout_batches", "max_steps num_train_epochs",
              "trainer.total_training_steps trainer.total_epochs", "num_steps total_steps steps iterations"),
    CommonKey("prompts in a rollout batch", "scale.prompts_per_batch",
              "per_device_train_batch_size generation_batch_size", "data.train_batch_size", "batch_size"),
    CommonKey("samples of each prompt, the group size", "scale.group_size", "num_generations",
              "actor_rollout_ref.rollout.n", "n_samples samples_per_prompt num_samples n"),
    CommonKey("updates on each rollout batch, the staleness", "regime.minibatches",
              "steps_per_generation", "actor_rollout_ref.actor.ppo_mini_batch_size",
              "staleness num_minibatches off_policy_steps"),
    CommonKey("passes over a rollout batch", "regime.epochs", "num_iterations",
              "actor_rollout_ref.actor.ppo_epochs", "ppo_epochs mu"),
    CommonKey("oldest token that is trained on, in updates", "regime.max_age", "max_staleness",
              "async_training.staleness_threshold", "staleness_threshold max_head_offpolicyness"),
    CommonKey("tokens in a micro-batch", "scale.micro_batch_tokens", "gradient_accumulation_steps",
              "actor_rollout_ref.actor.ppo_max_token_len_per_gpu "
              "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
              "micro_batch_size accumulate_grad_batches"),
    CommonKey("learning rate", "optimizer.optimizer.lr", "learning_rate", "actor_rollout_ref.actor.optim.lr",
              "lr"),
    CommonKey("weight decay", "optimizer.optimizer.weight_decay", "weight_decay",
              "actor_rollout_ref.actor.optim.weight_decay"),
    CommonKey("warm-up, in updates", "optimizer.scheduler.warmup_updates", "warmup_steps warmup_ratio",
              "actor_rollout_ref.actor.optim.lr_warmup_steps", "lr_scheduler_type"),
    CommonKey("largest norm of a gradient", "optimizer.max_grad_norm", "max_grad_norm",
              "actor_rollout_ref.actor.grad_clip", "gradient_clip_val"),
    CommonKey("temperature of training samples", "rollout.temperature", "temperature",
              "actor_rollout_ref.rollout.temperature"),
    CommonKey("nucleus and top-k sampling", "rollout.top_p", "top_p top_k",
              "actor_rollout_ref.rollout.top_p"),
    CommonKey("longest prompt, in tokens", "scale.max_prompt_tokens", "max_prompt_length",
              "data.max_prompt_length"),
    CommonKey("longest response, in tokens", "scale.max_new_tokens", "max_completion_length",
              "data.max_response_length", "max_tokens max_new_tokens max_length"),
    CommonKey("algorithm", "algorithm=grpo", "loss_type", "algorithm.adv_estimator", "algo method"),
    CommonKey("lower bound of the ratio, 1 - epsilon, if bounds are fixed", "algorithm.bounds.low", "epsilon",
              "actor_rollout_ref.actor.clip_ratio_low actor_rollout_ref.actor.clip_ratio",
              "clip_eps clip_range eps_clip"),
    CommonKey("upper bound of the ratio, 1 + epsilon, if bounds are fixed", "algorithm.bounds.high",
              "epsilon_high", "actor_rollout_ref.actor.clip_ratio_high"),
    CommonKey("dual clip", "algorithm.objective.dual_clip", "delta", "actor_rollout_ref.actor.clip_ratio_c"),
    CommonKey("BAPO's share of positive tokens, rho0", "algorithm.bounds.target", "-", "-",
              "rho rho0 positive_share"),
    CommonKey("weights of tokens in the loss", "algorithm.weighting", "loss_type",
              "actor_rollout_ref.actor.loss_agg_mode"),
    CommonKey("KL to the first weights, an objective of ten lines: docs/day_two.md", "algorithm.objective",
              "beta", "actor_rollout_ref.actor.kl_loss_coef algorithm.kl_ctrl.kl_coef "
              "actor_rollout_ref.actor.use_kl_loss",
              "kl_coef kl_beta kl_loss_coef use_kl_loss kl_ctrl"),
    CommonKey("bonus for entropy, an algorithm of docs/methods.md", "algorithm", "entropy_coef",
              "actor_rollout_ref.actor.entropy_coeff", "ent_coef"),
    CommonKey("model folder or hub name", "model.path", "model_name_or_path model",
              "actor_rollout_ref.model.path", "model_name pretrained policy"),
    CommonKey("training data: your own file", "data=table data.train.path", "dataset_name train_dataset",
              "data.train_files", "dataset train_file data_path"),
    CommonKey("validation data: your own file",
              "+problem_set@data.validation.mine=table data.validation.mine.path", "eval_dataset",
              "data.val_files", "val_file val_dataset test_file"),
    CommonKey("validation after so many updates", "callbacks.validation.every", "eval_steps",
              "trainer.test_freq", "val_check_interval eval_every"),
    CommonKey("evaluate without training", "make eval CKPT=FOLDER", "do_eval do_train", "trainer.val_only",
              "train test eval_only task_name"),
    CommonKey("checkpoint after so many updates", "callbacks.checkpoint.every", "save_steps",
              "trainer.save_freq", "save_every"),
    CommonKey("newest checkpoints to keep", "callbacks.checkpoint.keep", "save_total_limit",
              "trainer.max_actor_ckpt_to_keep"),
    CommonKey("best checkpoint, as a model folder", "callbacks=best_checkpoint",
              "load_best_model_at_end", "-", "save_best best_checkpoint metric_for_best_model"),
    CommonKey("early stopping: Lightning's callback", "callbacks=early_stopping",
              "-", "-", "early_stopping patience"),
    CommonKey("continue a run", "resume=auto", "resume_from_checkpoint", "trainer.resume_mode",
              "ckpt_path resume_path restore"),
    CommonKey("output folder", "output_root", "output_dir", "trainer.default_local_dir",
              "paths.output_dir save_dir log_dir default_root_dir"),
    CommonKey("loggers", "logger=[wandb,csv]", "report_to", "trainer.logger trainer.project_name",
              "wandb use_wandb loggers"),
    CommonKey("seed", "seed", "seed", "data.seed", "random_seed"),
    CommonKey("rollout engine", "rollout=vllm", "use_vllm vllm_mode", "actor_rollout_ref.rollout.name",
              "engine backend"),
    CommonKey("GPUs and sharding", "strategy=fsdp trainer.devices", "-", "trainer.n_gpus_per_node",
              "gpus num_gpus devices"),
    CommonKey("precision", "trainer.precision", "bf16 fp16", "actor_rollout_ref.model.dtype",
              "mixed_precision precision"),
    CommonKey("LoRA", "model/lora=default", "use_peft peft_config lora_r",
              "actor_rollout_ref.model.lora_rank", "lora lora_rank"),
    CommonKey("recompute activations", "model.activation_checkpointing", "gradient_checkpointing",
              "actor_rollout_ref.model.enable_gradient_checkpointing"),
)  # fmt: skip

# Headings of the page by the key of their first row, in words that readers search for.
HEADINGS = {
    "scale.num_rollout_batches": "Number of steps, batch size, staleness",
    "optimizer.optimizer.lr": "Learning rate and optimizer",
    "rollout.temperature": "Training temperature, response length, max tokens",
    "algorithm=grpo": "Algorithm, clip ratio (epsilon), KL penalty (beta)",
    "model.path": "Your own model, training data, validation file",
    "callbacks.checkpoint.every": "Checkpoints, early stopping, loggers, seed",
    "rollout=vllm": "Rollout engine, GPUs, precision, LoRA",
}


def meant_by(key: str) -> CommonKey | None:
    """Returns what a key of TRL, verl or other programs means here; None for any other key."""
    for common in THIRTY_KEYS:
        last_words = {name.rpartition(".")[2] for name in common.verl.split() if "_" in key}
        if key in last_words.union(f"{common.trl} {common.verl} {common.others}".split()):
            return common
    return None


def table(defaults: Mapping[str, Any]) -> str:
    """Returns the tables of docs/thirty_keys.md under their headings, with the defaults by dotted keys."""
    columns = ("| what | key | default | TRL | verl |", "|---|---|---|---|---|")
    lines: list[str] = []
    for what, key, *names, _ in THIRTY_KEYS:
        if key in HEADINGS:
            lines += ["", f"## {HEADINGS[key]}", "", *columns]
        default = defaults.get(key)
        shown = "" if isinstance(default, dict | None) else f"`{default}`"
        trl, verl = (", ".join(f"`{name}`" for name in text.split() if name != "-") for text in names)
        linked = re.sub(r"docs/(\w+\.md)", r"[\1](\1)", what)
        lines.append(f"| {linked} | `{key}` | {shown} | {trl} | {verl} |")
    return "\n".join(lines).strip()
