"""What can be wrong with the settings of an evaluation, told before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bapo_lightning.configuration.checks import target_complaints

Config = dict[str, Any]
COUNTS = ("k", "samples_per_call", "scale.max_new_tokens")


def evaluation_complaints(config: Config) -> list[str]:
    """Everything that is wrong with a resolved configuration whose open keys were filled, but for the engine,
    which asks for lengths.
    """
    found = [*count_complaints(config), *sampling_complaints(config)]
    if not config["data"]["validation"]:
        found.append(
            "no problems to answer; write DATA=NAME,NAME (sets=NAME,NAME), each a file of conf/problem_set, "
            "e.g. aime24"
        )
    return found + list(target_complaints(config))


def count_complaints(config: Config) -> Iterator[str]:
    """Counts are whole numbers of at least 1."""
    for key in (*COUNTS, *(["problems_per_set"] if config["problems_per_set"] is not None else [])):
        value: Any = config
        for part in key.split("."):
            value = value[part]
        if not (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
            yield f"{key}={value} must be a whole number of at least 1"


def sampling_complaints(config: Config) -> Iterator[str]:
    """A distribution that samples can be drawn from."""
    rollout = config["rollout"]
    numbers = {name: rollout[name] for name in ("temperature", "top_p", "top_k")}
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            yield f"rollout.{name}={value} must be a number"
            return
    if numbers["temperature"] < 0:
        yield f"rollout.temperature={numbers['temperature']} must be at least 0 (greedy)"
    if not 0 < numbers["top_p"] <= 1:
        yield (
            f"rollout.top_p={numbers['top_p']} is a share of probability; write a number in (0, 1], 1 is off"
        )
    if numbers["top_k"] < 0:
        yield f"rollout.top_k={numbers['top_k']} must be at least 0, which is off"
    if numbers["temperature"] == 0 and config["k"] != 1:
        yield (
            f"k={config['k']} with rollout.temperature=0: all samples of a problem would be the same; write "
            "k=1, or another temperature"
        )
