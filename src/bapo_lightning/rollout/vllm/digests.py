"""Digests of the weights that one worker of vLLM holds, under the names of modules that the trainer knows.

A weight that was packed for a CPU's kernels is read by applying its layer to columns of the identity. That is
exact in any precision: all products but one are zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from vllm.distributed import get_tensor_model_parallel_rank
from vllm.lora.layers import BaseLayerWithLoRA
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    LinearBase,
    QKVParallelLinear,
    RowParallelLinear,
    UnquantizedLinearMethod,
)
from vllm.model_executor.layers.vocab_parallel_embedding import (
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)

from bapo_lightning.rollout.engine import FACTOR_MARK
from bapo_lightning.rollout.weight_digests import column_digest, drawn_columns

Digests = Iterator[tuple[str, torch.Tensor | None]]


def held_digests(model: nn.Module, seed: int) -> Digests:
    """Yields names and digests of this worker's part of the weights. Those that may be held with other values
    than were sent have none: all but linear layers, embeddings and norms, and these if they are quantized.
    What several workers hold alike is the first one's.
    """
    embedding = ""  # the first one
    is_tied = getattr(model.config, "tie_word_embeddings", False)
    for name, layer in model.named_modules():
        if isinstance(layer, LinearBase) and isinstance(layer.quant_method, UnquantizedLinearMethod):
            yield from _linear(name, layer, seed)
        elif _is_plain_embedding(layer):
            yield from _embedding(name, layer, seed, embedding if is_tied else "")
            embedding = embedding or name
        elif isinstance(layer, RMSNorm) and layer.has_weight:
            if _is_first():
                yield f"{name}.weight", column_digest(layer.weight.reshape(-1, 1), [0])
        elif isinstance(layer, BaseLayerWithLoRA) and isinstance(layer.base_layer, LinearBase):
            yield from _factors(name, layer, seed)
        else:
            for last, _ in layer.named_parameters(recurse=False):
                yield f"{name}.{last}", None


def _is_plain_embedding(layer: nn.Module) -> bool:
    return isinstance(layer, VocabParallelEmbedding) and isinstance(
        layer.quant_method, UnquantizedEmbeddingMethod
    )


def _linear(name: str, layer: Any, seed: int) -> Digests:
    rows, (columns, places) = _own_rows(layer), _own_columns(layer, seed)
    held = layer.weight[:, columns] if layer.weight.numel() else _applied(layer, columns, _width(layer))
    yield f"{name}.weight", column_digest(held[rows], places)
    if layer.bias is not None and (isinstance(layer, ColumnParallelLinear) or _is_first()):
        yield f"{name}.bias", column_digest(layer.bias[rows].reshape(-1, 1), [0])


def _embedding(name: str, layer: Any, seed: int, same_as: str) -> Digests:
    drawn, rows = drawn_columns(layer.embedding_dim, seed), layer.shard_indices.num_org_elements
    places = list(range(len(drawn)))
    digest = column_digest(layer.weight[:rows, drawn], places)
    difference = torch.zeros_like(digest)
    if hasattr(layer, "cpu_linear"):  # has a packed copy, with which a head multiplies
        packed = _applied(layer, drawn, layer.embedding_dim)[:rows]
        difference = column_digest(packed, places) - digest
    if same_as:  # a tied head, which has no name of its own among the weights that are sent
        yield f"{same_as}.weight", 3 * difference
    else:
        yield f"{name}.weight", digest + 3 * difference


def _factors(name: str, layer: Any, seed: int) -> Digests:
    base, is_row_parallel = layer.base_layer, isinstance(layer.base_layer, RowParallelLinear)
    columns, places = _own_columns(base, seed)
    for part, (down, up) in enumerate(zip(layer.lora_a_stacked, layer.lora_b_stacked, strict=True)):
        if is_row_parallel or _is_first():
            yield f"{name}{FACTOR_MARK}A.weight", column_digest(down[0, 0][:, columns], places)
        if _is_first() or not (is_row_parallel or (part > 0 and _repeats_heads(base))):
            yield f"{name}{FACTOR_MARK}B.weight", column_digest(up[0, 0], list(range(up.shape[-1])))


def _applied(layer: Any, columns: list[int], width: int) -> torch.Tensor:
    """Columns [rows, k] of a packed weight with `width` inputs."""
    units = torch.zeros(len(columns), width, dtype=layer.params_dtype)
    units[range(len(columns)), columns] = 1
    held: torch.Tensor = layer.cpu_linear(units, layer.weight, None)
    return held.T


def _own_columns(layer: Any, seed: int) -> tuple[list[int], list[int]]:
    """Drawn columns of a layer that this worker holds, by its own numbers and by their places in the draw."""
    own, drawn = _width(layer), drawn_columns(layer.input_size, seed)
    first = layer.tp_rank * own if own < layer.input_size else 0
    places = [place for place, column in enumerate(drawn) if first <= column < first + own]
    return [drawn[place] - first for place in places], places


def _width(layer: Any) -> int:
    return int(getattr(layer, "input_size_per_partition", layer.input_size))


def _own_rows(layer: Any) -> slice:
    """Rows of a layer's outputs that no worker before this one holds as well."""
    if _repeats_heads(layer):
        return slice(layer.num_heads * layer.head_size)
    if isinstance(layer, ColumnParallelLinear | RowParallelLinear) or _is_first():
        return slice(None)
    return slice(0)


def _repeats_heads(layer: Any) -> bool:
    """Whether the worker before this one has the same heads of keys and values."""
    return isinstance(layer, QKVParallelLinear) and layer.tp_rank % layer.num_kv_head_replicas != 0


def _is_first() -> bool:
    return bool(get_tensor_model_parallel_rank() == 0)
