"""The role of every configuration key in a run, which decides where it may differ."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from enum import Enum, auto
from typing import Any

from bapo_lightning.system.errors import DataError


class Role(Enum):
    """The part of a run that a configuration key determines."""

    PLACE = auto()  # location of its files, and choice of the run that continues
    NAME = auto()  # its names in tables
    SEED = auto()
    LOGGER = auto()  # where metrics go besides the run folder, and their names there
    RECORDING = auto()  # what is measured, saved and printed during the run
    VALIDATION = auto()  # what it is tested on
    LENGTH = auto()
    OPERATION = auto()  # threads, ports, deadlines: how it is kept running
    COMPUTATION = auto()  # kernels, devices, engines: numbers change only by the order of sums
    PRECISION = auto()  # how passes round
    WEIGHTS = auto()  # the folder with its initial weights
    CONDITION = auto()  # the age of its data
    ALGORITHM = auto()
    LEARNING = auto()  # everything else: data, sampling, model, optimizer


# A key without an entry has the role of the nearest key above it that has one.
_KEYS = {
    Role.PLACE: ("output_root", "run_folder", "resume"),
    Role.NAME: ("name", "scale.name", "algorithm.name"),
    Role.SEED: ("seed",),
    Role.LOGGER: ("logger", "group", "job_type", "run_name"),
    Role.RECORDING: ("callbacks",),
    Role.VALIDATION: (
        *("data.validation", "data.validation_samples"),
        *("scale.validation_problems", "scale.validation_samples"),
    ),
    Role.LENGTH: ("scale.num_rollout_batches", "problems_per_set"),
    Role.OPERATION: (
        *("cpu_threads", "rank_timeout_minutes", "samples_per_call", "ranks"),
        "environment.workers",
        *("rollout.max_restarts", "rollout.serve_port", "rollout.weight_sync.tolerance"),
        *("rollout.engine.urls", "rollout.engine.address"),
        *("rollout.engine.cpu_threads", "rollout.engine.cpu_affinity"),
        *("rollout.engine.deadline_seconds", "rollout.engine.start_seconds"),
    ),
    Role.COMPUTATION: (
        *("trainer", "strategy", "plan", "rollout.engine", "rollout.weight_sync", "rollout.placement"),
        *("model.attention", "model.packing", "model.activation_checkpointing", "model.compile"),
        *("model.liger", "model.head", "scale.micro_batch_tokens"),
    ),
    Role.PRECISION: ("trainer.precision",),
    Role.WEIGHTS: ("checkpoint", "model.path", "model.made_by"),
    Role.CONDITION: ("regime",),
    Role.ALGORITHM: ("algorithm",),
}
# Keys that decide when a schedule of asynchronous generation starts, ends and takes something.
_SHAPES_SCHEDULE = (
    *("regime", "scale.prompts_per_batch", "scale.group_size", "scale.num_rollout_batches"),
    *("scale.max_new_tokens", "scale.max_feedback_tokens", "environment"),
    *("callbacks.validation.every", "callbacks.validation.first"),
)
_SHAPES_NO_SCHEDULE = ("regime.name", "regime.schedule", "regime.wait_warning_seconds")
_ROLE_OF_KEY = {key: role for role, keys in _KEYS.items() for key in keys}
_FOLDER_NAMES = ("folder", "log_folder", "save_dir")  # of callbacks, engines and loggers
_PERIPHERAL = {Role.PLACE, Role.LOGGER, Role.VALIDATION, Role.LENGTH, Role.OPERATION}
_MAY_CHANGE = {*_PERIPHERAL, Role.RECORDING, Role.COMPUTATION, Role.PRECISION}


def role_of(key: str) -> Role:
    """The role of a dotted key: its own, or the role of the nearest key above it."""
    parts = key.split(".")
    if parts[-1] in _FOLDER_NAMES:
        return Role.PLACE
    above = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((_ROLE_OF_KEY[name] for name in above if name in _ROLE_OF_KEY), Role.LEARNING)


def is_place(key: str) -> bool:
    """Whether a key only gives the location of files, so that a change of it is not worth a line."""
    return role_of(key) is Role.PLACE


def may_change_on_resume(key: str) -> bool:
    """Whether a run may resume with another value: the key does not change what the run learns from."""
    return role_of(key) in _MAY_CHANGE


def is_setting(key: str) -> bool:
    """Whether runs of one algorithm with different values are different settings in a comparison."""
    return role_of(key) not in {*_MAY_CHANGE - {Role.PRECISION}, Role.NAME, Role.SEED, Role.CONDITION}


def should_be_alike(key: str) -> bool:
    """Whether runs that are compared should have the same value: they are not compared by it, and it does
    not say where and what they write.
    """
    free = {Role.PLACE, Role.NAME, Role.SEED, Role.LOGGER, Role.RECORDING, Role.ALGORITHM}
    return role_of(key) not in free


def is_listed(key: str) -> bool:
    """Whether a comparison lists the key if settings differ in it."""
    return role_of(key) not in {Role.PLACE, Role.SEED, Role.LOGGER}


def may_differ_in_evaluation(key: str) -> bool:
    """Whether an evaluation may continue with another value; digests identify weights and problems."""
    return role_of(key) in {*_PERIPHERAL, Role.WEIGHTS}


def names_evaluation(key: str) -> bool:
    """Whether another value makes another evaluation, by default with a separate folder."""
    return not may_differ_in_evaluation(key) and role_of(key) is not Role.NAME


def shapes_schedule(key: str) -> bool:
    """Whether a run that follows the recorded schedule of another must have the same value."""
    return key not in _SHAPES_NO_SCHEDULE and f"{key}.".startswith(
        tuple(f"{shaping}." for shaping in _SHAPES_SCHEDULE)
    )


def short_names(keys: Collection[str]) -> dict[str, str]:
    """The shortest ending that no other dotted key has: {"a.low", "b.low", "c.x"} -> a.low, b.low, x."""
    shortened = {}
    for key in keys:
        parts = key.lstrip("+~").split(".")
        endings = [".".join(parts[start:]) for start in range(len(parts) - 1, -1, -1)]
        others = [f".{other.lstrip('+~')}" for other in keys if other != key]
        shortened[key] = next(
            (ending for ending in endings if not any(other.endswith(f".{ending}") for other in others)),
            endings[-1],
        )
    return shortened


def value_of(config: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key in a stored configuration. Raises DataError if it has no such key."""
    node: Any = config
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            raise DataError(
                f"the stored configuration has no {key}: config.yaml is torn, or of another version"
            )
        node = node[part]
    return node


def leaves(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """All values of a configuration with their full keys; lists and empty nodes are values."""
    if not isinstance(node, dict) or not node:
        yield key, node
        return
    for name, value in node.items():
        yield from leaves(value, f"{key}.{name}" if key else str(name))


def value_text(value: Any) -> str:
    """Formats a value of a configuration for people."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, default=str)


Config = dict[str, Any]
ABSENT = "nothing"


def changes(stored: Config, present: Config) -> tuple[list[str], list[str]]:
    """Returns "key: stored -> present", (allowed, refused), without places and paths in the run folder."""
    allowed: list[str] = []
    refused: list[str] = []
    for key, before, now in differences(stored, present):
        is_moved = before == str(now).replace(present["run_folder"], str(stored.get("run_folder")))
        if not is_moved and not is_place(key):
            (allowed if may_change_on_resume(key) else refused).append(f"{key}: {before} -> {now}")
    return allowed, refused


def differences(stored: Mapping[str, Any], present: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yields (key, stored value, present value) of the leaves that differ; ABSENT for a missing value."""
    old, new = dict(leaves(stored)), dict(leaves(present))
    for key in {**old, **new}:
        before, now = old.get(key, ABSENT), new.get(key, ABSENT)
        if before != now:
            yield key, before, now


def makes_longer(stored: Config, present: Config) -> bool:
    """Whether the present configuration requests more rollout batches than the stored one."""
    key = "scale.num_rollout_batches"
    return bool(value_of(present, key) > value_of(stored, key))
