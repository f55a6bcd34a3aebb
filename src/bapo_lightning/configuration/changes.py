"""Differences between the configurations of two sessions: those of one run, and those of another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bapo_lightning.run_folder.config_keys import is_place, leaves, may_change_on_resume

Config = dict[str, Any]
ABSENT = "nothing"


def changes(stored: Config, present: Config) -> tuple[list[str], list[str]]:
    """Returns differences as "key: stored -> present": (allowed ones, refused ones).

    Places and paths within the run folder are left out.
    """
    allowed: list[str] = []
    refused: list[str] = []
    for key, before, now in differences(stored, present):
        is_moved = before == str(now).replace(present["run_folder"], stored["run_folder"])
        if not is_moved and not is_place(key):
            (allowed if may_change_on_resume(key) else refused).append(f"{key}: {before} -> {now}")
    return allowed, refused


def differences(stored: Mapping[str, Any], present: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yields (key, stored value, present value) of the leaves that differ; ABSENT where there is none."""
    old, new = dict(leaves(stored)), dict(leaves(present))
    for key in {**old, **new}:
        before, now = old.get(key, ABSENT), new.get(key, ABSENT)
        if before != now:
            yield key, before, now


def makes_longer(stored: Config, present: Config) -> bool:
    """Whether the present configuration asks for more rollout batches than the stored one."""
    return bool(present["scale"]["num_rollout_batches"] > stored["scale"]["num_rollout_batches"])
