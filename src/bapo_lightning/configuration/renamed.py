"""Keys and groups that had other names before: they are refused with the new name, before Hydra says less."""

from __future__ import annotations

from collections.abc import Sequence

RENAMED = {
    "regime.overlap": "regime.async_generation",
    "regime.too_old": "regime.stale_action",
    "regime.tokens_per_pass": "regime.partial_tokens",
    "regime.wait_limit_seconds": "regime.wait_warning_seconds",
    "scale.tokens_per_pass": "scale.partial_tokens",
    "positive_share_target": "algorithm.positive_share_target",
    "trainer.cpu_threads": "cpu_threads",
    "trainer.rank_wait_minutes": "rank_timeout_minutes",
    "trainer.checkpoint_every": "callbacks.checkpoint.every",
    "trainer.checkpoint_minutes": "callbacks.checkpoint.minutes",
    "trainer.checkpoints_kept": "callbacks.checkpoint.keep",
    "callbacks.print_every": "callbacks.console.every",
    "callbacks.samples_every": "callbacks.rollout_writer.every",
    "callbacks.samples_num_groups": "callbacks.rollout_writer.num_groups",
    "callbacks.tokens_every": "callbacks.token_writer.every",
    "callbacks.measure_entropy_every": "callbacks.entropy_rule.every",
    "callbacks.validate_every": "callbacks.validation.every",
    "callbacks.export_every": "callbacks.hf_export.every",
    "callbacks.exports_kept": "callbacks.hf_export.keep",
    "callbacks.export_dtype": "callbacks.hf_export.dtype",
    "callbacks.watchdog_minutes": "callbacks.watchdog.minutes",
    "strategy.name": "strategy",
    "strategy.compute_dtype": "trainer.precision",
    "lora": "model/lora",
    "prompt@data.prompt": "data/prompt",
    "filters@data.filters": "data/filters",
    "bounds@algorithm.bounds": "algorithm/bounds",
    "transport@rollout.engine.transport": "rollout/engine/transport",
}
RENAMED_CHOICES = {
    ("strategy.compute_dtype", "float32"): "trainer.precision=32-true",
    ("strategy.compute_dtype", "bfloat16"): "trainer.precision=bf16-mixed",
    ("experiment", "grpo_7b"): "experiment=bapo_7b algorithm=grpo",
    ("experiment", "dapo_7b"): "experiment=bapo_7b algorithm=dapo",
    ("rollout.placement", "leader"): "rollout.placement=controller",
    ("model", "tiny_world"): "model=additions",
    ("data", "tiny_world"): "data=additions",
    ("sets", "tiny_world"): "sets=additions",
}


def renamed_problems(overrides: Sequence[str]) -> list[str]:
    """One text for each override that names a key or a choice by its earlier name."""
    found = []
    for override in overrides:
        key, _, value = override.partition("=")
        key = key.lstrip("+~")
        if (key, value) in RENAMED_CHOICES:
            found.append(f"{key}={value} is gone; write {RENAMED_CHOICES[key, value]}")
        elif key in RENAMED:
            found.append(f"{key} is now {RENAMED[key]}; write {RENAMED[key]}={value}")
    return found
