"""Writes weights as safetensors files one tensor at a time: of a model of any size, only its largest tensor
is in memory.

The library's own writer takes a whole file's tensors at once. Format:
https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

INDEX = "model.safetensors.index.json"
DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64"}
ALIGNMENT = 8  # of the data behind the header


@dataclass(frozen=True)
class WeightSpec:
    """A weight as it is to be written."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """In the file."""
        return prod(self.shape) * self.dtype.itemsize


def write_shards(
    folder: Path, specs: Sequence[WeightSpec], weights: Iterable[tuple[str, Tensor]], max_bytes: int
) -> None:
    """Write `weights`, which come in the order of `specs`, to files of at most `max_bytes` (a larger weight
    stands alone).

    Raises:
        ValueError: a weight is not the one that was announced.
    """
    shards = _shards(specs, max_bytes)
    stream = iter(weights)
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = (
            "model.safetensors"
            if len(shards) == 1
            else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        )
        places |= {spec.name: name for spec in shard}
        with (folder / name).open("wb") as file:
            file.write(_header(shard))
            for spec in shard:
                _bytes_of(spec, *next(stream)).tofile(file)
            file.flush()
            os.fsync(file.fileno())
    if len(shards) > 1:
        index = {"metadata": {"total_size": sum(spec.num_bytes for spec in specs)}, "weight_map": places}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _shards(specs: Sequence[WeightSpec], max_bytes: int) -> list[list[WeightSpec]]:
    shards: list[list[WeightSpec]] = [[]]
    for spec in specs:
        if shards[-1] and sum(other.num_bytes for other in shards[-1]) + spec.num_bytes > max_bytes:
            shards.append([])
        shards[-1].append(spec)
    return shards


def _header(specs: Sequence[WeightSpec]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for spec in specs:
        end = start + spec.num_bytes
        entries[spec.name] = {
            "dtype": DTYPE_NAMES[spec.dtype],
            "shape": spec.shape,
            "data_offsets": (start, end),
        }
        start = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _bytes_of(spec: WeightSpec, name: str, weight: Tensor) -> Any:
    if (name, tuple(weight.shape)) != (spec.name, spec.shape):
        raise ValueError(f"expected {spec.name} {list(spec.shape)}, got {name} {list(weight.shape)}")
    return weight.detach().to("cpu", spec.dtype).contiguous().flatten().view(torch.uint8).numpy()
