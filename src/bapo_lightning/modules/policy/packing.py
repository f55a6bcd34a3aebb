"""Packs sequences into one row without padding, in which no token sees another sequence.

Position ids count from the start of each prompt. The kernel decides how attention keeps sequences apart:

    flash attention     by its kernel for sequences of varying length, which gets their boundaries; torch has
                        one of its own, `varlen` below
    flex_attention      by a block mask, which transformers derives from the position ids
    sdpa                by `packed_sdpa` below, which lays sequences of similar length side by side for
                        attention only; a prompt is in the row once for all its responses, so that layers that
                        process one token at a time compute it once
"""

from __future__ import annotations

from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from bapo_lightning.data.batches.model_input import Layout, ModelInput, SharedRow, on_device, ramps
from bapo_lightning.modules.policy.options import FLASH, VARLEN
from bapo_lightning.system.errors import ConfigError
from bapo_lightning.system.precision import attention_on_cpu, with_whole_heads

PACKED_SDPA = "packed_sdpa"
ATTENTION_LAYERS = ("full_attention", "sliding_attention")
sdpa = with_whole_heads(sdpa_attention_forward)


def packed_attention(attention: str | None) -> str:
    """Returns transformers' name of the implementation that packs sequences for `attention` (null: any)."""
    return PACKED_SDPA if attention in (None, "sdpa") else attention


def check_packable(model: PreTrainedModel) -> None:
    """Raises ConfigError unless tokens interact only in attention and positions come from position ids."""
    config = model.config
    others = sorted(set(getattr(config, "layer_types", None) or ()) - set(ATTENTION_LAYERS))
    if others or getattr(model, "_is_stateful", False):
        part = f"layers of type {', '.join(others)}" if others else "a recurrent state"
        problem = f"the model has {part}, which would mix sequences"
    elif getattr(config, "attn_temperature_tuning", False):
        problem = "the model scales attention by the place in the row"
    elif not model._supports_attention_backend:
        problem = f"{type(model).__name__} brings its own attention"
    else:
        return
    raise ConfigError([f"model.packing=padding_free: {problem}; write model.packing=none"])


def row_layout(attention: str) -> Layout:
    """Returns the layout without padding, by the name from `packed_attention`; only ours shares prompts."""
    return Layout.SHARED if attention == PACKED_SDPA else Layout.PACKED


def row_arguments(inputs: ModelInput, attention: str) -> dict[str, Any]:
    """Returns arguments of the model's forward pass that describe the sequences in its one row, for
    `attention` from `packed_attention`; none for padded rows.
    """
    device = inputs.input_ids.device
    if inputs.shared is not None:
        positions = on_device(inputs.shared.owned[1], device)[None]
        return {"position_ids": positions, "cells": attention_cells(inputs.shared, device)}
    if not inputs.packed_lengths:
        return {}
    sizes = np.asarray(inputs.packed_lengths, np.int64)
    arguments: dict[str, Any] = {"position_ids": on_device(ramps(sizes), device)[None]}
    if attention in FLASH:  # computed once here instead of in every layer
        boundaries = on_device(np.concatenate([[0], sizes.cumsum()]).astype(np.int32), device)
        arguments |= {"cu_seq_lens_q": boundaries, "cu_seq_lens_k": boundaries}
        arguments |= {"max_length_q": int(sizes.max()), "max_length_k": int(sizes.max())}
    return arguments


@dataclass(frozen=True)
class AttentionCells:
    """Layout of a row of T tokens for attention: grids in which every sample follows its whole prompt, and
    the mapping back.
    """

    grids: tuple[Tensor, ...]  # [R, L] each: index in the row, below T, of each cell
    back: Tensor  # [T] cell, counted over all grids, that holds the result of each token of the row


def attention_cells(row: SharedRow, device: torch.device) -> AttentionCells:
    """Returns the layout of one row for attention."""
    grids = row.grids()
    start = np.empty(len(row.first), np.int64)  # first cell of each sample
    cells = 0
    for samples, indices in grids:
        start[samples] = cells + np.arange(len(samples)) * indices.shape[1]
        cells += indices.size
    sample, column = row.owned
    return AttentionCells(
        tuple(on_device(indices, device) for _, indices in grids), on_device(start[sample] + column, device)
    )


@torch.compiler.disable  # grids differ in number and shape from row to row
@attention_on_cpu
def packed_sdpa(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    cells: AttentionCells,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Computes causal attention within each sample, without a mask of all tokens by all tokens.

    Takes query [1, H, T, d], key and value [1, H', T, d], no mask, because `cells` describes the samples, and
    in `sliding_window` the number of tokens that a token sees, itself included (None: all before it). Returns
    [1, T, H, d], and no attention weights.
    """
    outputs = []
    for indices in cells.grids:
        q, k, v = (_laid_out(tensor, indices) for tensor in (query, key, value))
        length, mask = indices.shape[1], None
        if sliding_window is not None and length > sliding_window:
            sees = torch.ones(length, length, dtype=torch.bool, device=q.device)
            mask = sees.tril().triu(1 - sliding_window)[None, None]
        outputs.append(sdpa(module, q, k, v, mask, **kwargs)[0].flatten(0, 1))
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return embedding(cells.back, joined.flatten(1)).unflatten(1, joined.shape[1:])[None], None


def _laid_out(states: Tensor, indices: Tensor) -> Tensor:
    # [1, H, T, d] -> [R, H, L, d]. Backward, an embedding sums in a fixed order, and faster than an index.
    by_token = states[0].transpose(0, 1)
    return embedding(indices, by_token.flatten(1)).unflatten(2, by_token.shape[1:]).transpose(1, 2)


def has_varlen() -> bool:
    """Returns whether this torch has the kernel of `varlen`, with heads that share keys (torch 2.13)."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    return "enable_gqa" in signature(varlen_attn).parameters


def varlen(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    cu_seq_lens_q: Tensor,
    max_length_q: int,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Computes causal attention within each sequence of a row by torch's own kernel, on a GPU and in 16 bits.

    Takes query [1, H, T, d], key and value [1, H', T, d], no mask, the boundaries [N + 1] of the sequences,
    the longest one's tokens, and `sliding_window` as `packed_sdpa`. Returns [1, T, H, d], and no attention
    weights.
    """
    from torch.nn.attention.varlen import varlen_attn

    # Under autocast, rotations leave queries and keys in float32.
    q, k, v = (tensor[0].transpose(0, 1).to(value.dtype) for tensor in (query, key, value))
    starts, most = cu_seq_lens_q, max_length_q
    window = (-1 if sliding_window is None else sliding_window - 1, 0)
    shared = query.shape[1] != key.shape[1]
    options: dict[str, Any] = {"scale": scaling, "window_size": window, "enable_gqa": shared}
    states: Any = varlen_attn(q, k, v, starts, starts, most, most, **options)
    return states[None], None


AttentionInterface.register(PACKED_SDPA, packed_sdpa)
AttentionInterface.register(VARLEN, varlen)
AttentionInterface.register("sdpa", sdpa)
