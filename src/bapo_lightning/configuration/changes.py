"""Which keys of a configuration may differ between the sessions of one run, and which would make it another
run.
"""

from __future__ import annotations

from typing import Any

from bapo_lightning.run_folder.config_keys import leaves

Config = dict[str, Any]
# How a run is computed, recorded and for how long, not what it learns from.
MAY_CHANGE = (
    "callbacks",
    "trainer",
    "logger",
    "plan",
    "rollout",
    "strategy",
    "model.attention",
    "model.packing",
    "model.activation_checkpointing",
    "model.liger",
    "output_root",
    "run_folder",
    "resume",
    "scale.num_rollout_batches",
    "scale.micro_batch_tokens",
    "scale.validation_problems",
    "scale.validation_samples",
    "data.validation",
    "data.validation_samples",
)
SAMPLING = ("rollout.temperature",)  # within those: what the samples are drawn from
PLACES = ("output_root", "run_folder", "resume")
ABSENT = "nothing"


def changes(stored: Config, present: Config) -> tuple[list[str], list[str]]:
    """Differences of two resolved configurations, as "key: stored -> present": (allowed ones worth telling,
    refused ones).
    """
    allowed: list[str] = []
    refused: list[str] = []
    old, new = dict(leaves(stored)), dict(leaves(present))
    for key in [*old, *(key for key in new if key not in old)]:
        before, now = old.get(key, ABSENT), new.get(key, ABSENT)
        is_moved = before == str(now).replace(
            present["run_folder"], stored["run_folder"]
        )  # a path in the run folder
        if before == now or is_moved or key in PLACES:
            continue
        may = key not in SAMPLING and any(key == free or key.startswith(f"{free}.") for free in MAY_CHANGE)
        (allowed if may else refused).append(f"{key}: {before} -> {now}")
    return allowed, refused


def makes_longer(stored: Config, present: Config) -> bool:
    """Whether the present configuration asks for more rollout batches than the stored one."""
    return bool(present["scale"]["num_rollout_batches"] > stored["scale"]["num_rollout_batches"])
