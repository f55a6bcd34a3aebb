"""Names for what sets runs apart: the shortest endings of configuration keys, and the values that vary among
runs of one algorithm.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any

# How a run is computed, recorded, and for how long; its seed; and the regime, which is its condition.
_NO_SETTING = (
    *(
        "seed",
        "name",
        "run_folder",
        "output_root",
        "resume",
        "logger",
        "callbacks",
        "trainer",
        "strategy",
        "rollout.engine",
    ),
    *(
        "rollout.weight_sync",
        "rollout.max_restarts",
        "scale.num_rollout_batches",
        "scale.micro_batch_tokens",
        "scale.name",
    ),
    *("scale.validation_problems", "scale.validation_samples", "data.validation", "algorithm.name", "regime"),
)


def short_names(keys: Collection[str]) -> dict[str, str]:
    """The shortest ending of each dotted key that no other key has: {"a.low", "b.low", "c.x"} -> a.low,
    b.low, x.
    """
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


def name_settings(runs: Sequence[dict[str, Any]]) -> None:
    """Give every run its `setting`: the algorithm, with the values that vary among its runs where there are
    any (`setting_keys`).

    Not a setting is what says how a run is computed or recorded, its seed, and what its `condition` tells
    already.
    """
    for algorithm in {run["algorithm"] for run in runs}:
        peers = [run for run in runs if run["algorithm"] == algorithm]
        varying = _varying_keys(peers)
        short = short_names(varying)
        for run in peers:
            values = dict(leaves(run["config"]))
            label = [f"{short[key]}={value_text(values[key])}" for key in varying if key in values]
            run["setting"] = " ".join([algorithm, *label])
            run["setting_keys"] = varying


def leaves(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """All values of a configuration with their full keys; lists and empty nodes are values."""
    if not isinstance(node, dict) or not node:
        yield key, node
        return
    for name, value in node.items():
        yield from leaves(value, f"{key}.{name}" if key else str(name))


def is_setting(key: str) -> bool:
    """Whether a configuration key says what a run learns from, and not how it is computed, recorded, or for
    how long.
    """
    return not any(key == free or key.startswith(f"{free}.") for free in _NO_SETTING)


def value_text(value: Any) -> str:
    """A value of a configuration for people."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _varying_keys(peers: Sequence[dict[str, Any]]) -> list[str]:
    """Keys of settings that differ among runs of one algorithm; of several that always differ together, the
    one nearest to the root.
    """
    tables = [dict(leaves(run["config"])) for run in peers]
    keys = list(dict.fromkeys(key for table in tables for key in table if is_setting(key)))
    found: dict[tuple[str, ...], str] = {}
    for key in sorted(keys, key=lambda key: key.count(".")):
        values = tuple(value_text(table[key]) if key in table else "" for table in tables)
        if len(set(values)) > 1 and not _follows(values, peers):
            found.setdefault(values, key)
    return [key for key in keys if key in found.values()]


def _follows(values: Sequence[str], peers: Sequence[dict[str, Any]]) -> bool:
    """Whether the values are those of the seed, or are fixed by the condition of a run."""
    by_condition: dict[Any, set[str]] = {}
    for value, run in zip(values, peers, strict=True):
        by_condition.setdefault(run["condition"], set()).add(value)
    of_seed = all(value == str(run["seed"]) for value, run in zip(values, peers, strict=True))
    return of_seed or all(len(found) == 1 for found in by_condition.values())
