"""Rules between the keys of `data`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Config = dict[str, Any]


def data_complaints(data: Config) -> Iterator[str]:
    """Every set is something that can be read, and every name given for a validation set is that of one."""
    sets = {"data.train": data["train"]}
    if not isinstance(data["validation"], dict) or "_target_" in data["validation"]:
        yield (
            "data.validation is one set, and must be a mapping of names to sets, as in val/<name>/avg@k; "
            "write data.validation: {NAME: {_target_: ...}}"
        )
    else:
        sets |= {f"data.validation.{name}": node for name, node in data["validation"].items()}
    for key, node in sets.items():
        if not isinstance(node, dict) or "_target_" not in node:
            yield f"{key} is no problem set (it has no _target_); choose one: problem_set@{key}=NAME"
    for name, count in data["validation_samples"].items():
        key = f"data.validation_samples.{name}"
        if name not in data["validation"]:
            yield (
                f"{key}={count} names no validation set; there are {', '.join(data['validation']) or 'none'}"
            )
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            yield f"{key}={count} must be a whole number of at least 1"
