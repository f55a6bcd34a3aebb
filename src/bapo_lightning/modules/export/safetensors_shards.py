"""Writes weights as safetensors files of limited size, one file in memory at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

INDEX = "model.safetensors.index.json"


def write_shards(
    folder: Path, weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype, max_bytes: int
) -> int:
    """Writes `weights` in `dtype` to files of at most `max_bytes`; a larger weight gets a file of its own.

    Files are named as transformers and vLLM expect: `model.safetensors`, or
    `model-00001-of-00003.safetensors` and so on with an index.

    Returns:
        Number of weights.
    """
    names_by_file: list[list[str]] = []
    total_bytes = 0
    for shard in _shards(weights, dtype, max_bytes):
        names_by_file.append(list(shard))
        total_bytes += sum(weight.nbytes for weight in shard.values())
        save_file(shard, folder / f"{len(names_by_file)}.partial", {"format": "pt"})
    num_files = len(names_by_file)
    file_of: dict[str, str] = {}
    for number, names in enumerate(names_by_file, 1):
        numbers = "" if num_files == 1 else f"-{number:05d}-of-{num_files:05d}"
        file = (folder / f"{number}.partial").rename(folder / f"model{numbers}.safetensors")
        file_of |= dict.fromkeys(names, file.name)
    if num_files > 1:
        index = {"metadata": {"total_size": total_bytes}, "weight_map": file_of}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return len(file_of)


def _shards(
    weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype, max_bytes: int
) -> Iterator[dict[str, Tensor]]:
    """Yields one dictionary repeatedly, refilled for each file, so that only one file's weights are alive."""
    shard: dict[str, Tensor] = {}
    num_bytes = 0
    for name, weight in weights:
        weight = weight.detach().to("cpu", dtype).contiguous()
        if shard and num_bytes + weight.nbytes > max_bytes:
            yield shard
            shard.clear()
            num_bytes = 0
        shard[name] = weight
        num_bytes += weight.nbytes
    yield shard
