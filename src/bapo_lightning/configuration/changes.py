"""Differences between the configurations of two sessions of one run: those that it may have, and those that
would make it another run.
"""

from __future__ import annotations

from typing import Any

from bapo_lightning.run_folder.config_keys import is_place, leaves, may_change_on_resume

Config = dict[str, Any]
ABSENT = "nothing"


def changes(stored: Config, present: Config) -> tuple[list[str], list[str]]:
    """Differences of two resolved configurations, as "key: stored -> present": (allowed ones, refused ones).
    Places and paths within the run folder are left out.
    """
    allowed: list[str] = []
    refused: list[str] = []
    old, new = dict(leaves(stored)), dict(leaves(present))
    for key in [*old, *(key for key in new if key not in old)]:
        before, now = old.get(key, ABSENT), new.get(key, ABSENT)
        is_moved = before == str(now).replace(present["run_folder"], stored["run_folder"])
        if before == now or is_moved or is_place(key):
            continue
        (allowed if may_change_on_resume(key) else refused).append(f"{key}: {before} -> {now}")
    return allowed, refused


def makes_longer(stored: Config, present: Config) -> bool:
    """Whether the present configuration asks for more rollout batches than the stored one."""
    return bool(present["scale"]["num_rollout_batches"] > stored["scale"]["num_rollout_batches"])
