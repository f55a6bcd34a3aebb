"""Rules about the rollout engine, checked before anything is started."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bapo_lightning.modules.policy.folder import model_path

Config = dict[str, Any]
DTYPES = ("bfloat16", "float16", "float32")
COUNTS = (
    "max_model_len",
    "max_num_seqs",
    "tensor_parallel_size",
    "num_servers",
    "part_megabytes",
    "max_rows",
)
SECONDS = ("deadline_seconds", "start_seconds")
OPTIONAL_COUNTS = ("kv_cache_bytes", "cpu_threads")


def engine_complaints(config: Config) -> Iterator[str]:
    """What is wrong with `rollout.engine`, and with lengths that the model cannot have."""
    for key, value in leaves(config["rollout"]["engine"], "rollout.engine"):
        yield from option_complaints(key, value)
    engine = config["rollout"]["engine"]
    if engine.get("gpus") and len(engine["gpus"]) != engine["num_servers"]:
        yield (
            f"rollout.engine.gpus={engine['gpus']} names the GPUs of {len(engine['gpus'])} servers, "
            f"rollout.engine.num_servers={engine['num_servers']}; write one entry for each server"
        )
    yield from length_complaints(config)


def option_complaints(key: str, value: Any) -> Iterator[str]:
    """What is wrong with one option, told by its name."""
    name = key.rpartition(".")[2]
    whole = isinstance(value, int) and not isinstance(value, bool)
    if (name in COUNTS or (name in OPTIONAL_COUNTS and value is not None)) and not (whole and value >= 1):
        yield (
            f"{key}={value} must be a whole number of at least "
            f"1{' or null' if name in OPTIONAL_COUNTS else ''}"
        )
    if name in SECONDS and not (isinstance(value, (int, float)) and value > 0):
        yield f"{key}={value} must be a positive number of seconds"
    if name == "dtype" and value not in (None, *DTYPES):
        yield f"{key}={value} is none of its values; write one of {', '.join(DTYPES)}"
    if name == "gpu_memory_utilization" and not (isinstance(value, (int, float)) and 0 < value <= 1):
        yield f"{key}={value} is a share of the GPU's memory; write a number in (0, 1], e.g. 0.4"
    if name == "cpu_affinity":
        existing = range(os.cpu_count() or 1)
        missing = [core for core in (value if isinstance(value, list) else [value]) if core not in existing]
        if missing:
            yield f"{key}={value}: this machine has no core {missing[0]}, its cores are 0 to {existing[-1]}"
    if name == "urls":
        for url in value:
            if not str(url).startswith(("http://", "https://")):
                yield f"{key}: {url} is no URL; write e.g. {key}=[http://127.0.0.1:8000]"


def length_complaints(config: Config) -> Iterator[str]:
    """Prompt and response fit into the model's positions. A hub model is left to the engine."""
    file = Path(model_path(config["model"]["path"]), "config.json")
    scale = config["scale"]
    needed = scale["max_prompt_tokens"] + scale["max_new_tokens"]
    try:
        positions = json.loads(file.read_text(encoding="utf-8")).get("max_position_embeddings")
    except (OSError, ValueError):  # told by the checks of the model folder
        return
    if positions is not None and needed > positions:
        yield (
            f"scale.max_prompt_tokens={scale['max_prompt_tokens']} and "
            f"scale.max_new_tokens={scale['max_new_tokens']} make {needed} tokens, the model has {positions} "
            f"positions; write scale.max_new_tokens={max(positions - scale['max_prompt_tokens'], 1)}"
        )


def leaves(node: Any, key: str) -> Iterator[tuple[str, Any]]:
    """All values below a node, with their keys; lists are values."""
    if not isinstance(node, dict):
        yield key, node
        return
    for name, value in node.items():
        if name != "extra":
            yield from leaves(value, f"{key}.{name}")
