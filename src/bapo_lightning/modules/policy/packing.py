"""Packed sequences: one row without padding, in which no token sees another sequence.

Position ids count from the start of each prompt. What keeps sequences apart in attention depends on the
kernel:

    flash_attention_2   its kernel for sequences of varying length, told where they end
    flex_attention      a block mask, which transformers derives from the position ids
    sdpa                `packed_sdpa` below: for attention alone, sequences of similar length are laid side by side. There a prompt stands
                        in the row once for all responses to it: whatever looks at one token at a time passes
                        over it once
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from bapo_lightning.data.batches.batch import ModelInput
from bapo_lightning.data.batches.layout import Layout, SharedRow, ramps
from bapo_lightning.errors import ConfigError

PACKED_SDPA = "packed_sdpa"
ATTENTION_LAYERS = ("full_attention", "sliding_attention")
# Rotary embeddings that depend on the longest sequence at hand: there one packed sequence would change
# another.
LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")


def packed_attention(attention: str | None) -> str:
    """The implementation, by transformers' name, that serves packed sequences where `attention` (null: any)
    was asked for.
    """
    return PACKED_SDPA if attention in (None, "sdpa") else attention


def check_packable(model: PreTrainedModel) -> None:
    """Raises ConfigError unless attention is all that carries a token to another, and positions come from
    position ids.
    """
    config = model.config
    others = sorted(set(getattr(config, "layer_types", None) or ()) - set(ATTENTION_LAYERS))
    if others or getattr(model, "_is_stateful", False):
        found = f"layers of type {', '.join(others)}" if others else "a recurrent state"
        raise ConfigError(
            [
                f"model.packing=padding_free: the model has {found}, which would mix sequences; write "
                "model.packing=none"
            ]
        )
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    if rope in LENGTH_DEPENDENT_ROPE:
        raise ConfigError(
            [
                f"model.packing=padding_free: rotary embeddings of type {rope} change with the longest "
                "sequence; write model.packing=none"
            ]
        )
    if not model._supports_attention_backend:
        raise ConfigError(
            [
                f"model.packing=padding_free: {type(model).__name__} brings its own attention; write "
                "model.packing=none"
            ]
        )


def row_layout(attention: str) -> Layout:
    """Of micro-batches without padding. Only our own attention knows prompts that stand once.

    Args:
        attention: `packed_attention`'s name.
    """
    return Layout.SHARED if attention == PACKED_SDPA else Layout.PACKED


def row_arguments(inputs: ModelInput, attention: str) -> dict[str, Any]:
    """What the model's forward pass is told about the sequences in its one row, beside the tokens; nothing
    where samples are padded.

    Args:
        inputs: a micro-batch.
        attention: `packed_attention`'s name.
    """
    device = inputs.input_ids.device
    if inputs.shared is not None:
        positions = torch.from_numpy(inputs.shared.owned[1])[None].to(device)
        return {"position_ids": positions, "cells": attention_cells(inputs.shared, device)}
    if not inputs.packed_lengths:
        return {}
    sizes = np.asarray(inputs.packed_lengths, np.int64)
    arguments: dict[str, Any] = {"position_ids": torch.from_numpy(ramps(sizes))[None].to(device)}
    if attention == "flash_attention_2":  # said once here, it is not found out again in every layer
        boundaries = torch.from_numpy(np.concatenate([[0], sizes.cumsum()]).astype(np.int32)).to(device)
        arguments |= {"cu_seq_lens_q": boundaries, "cu_seq_lens_k": boundaries}
        arguments |= {"max_length_q": int(sizes.max()), "max_length_k": int(sizes.max())}
    return arguments


@dataclass(frozen=True)
class AttentionCells:
    """How attention lays the row out: grids in which every sample has its whole prompt before it, and the way
    back.
    """

    grids: tuple[Tensor, ...]  # [R, L] each: place in the row, T places, of each cell
    back: Tensor  # [T] cell of all grids, flat, that holds the result of each place


def attention_cells(row: SharedRow, device: torch.device) -> AttentionCells:
    """The cells of samples that stand in one row."""
    grids = row.grids()
    start = np.empty(len(row.first), np.int64)  # first cell of each sample
    cells = 0
    for samples, places in grids:
        start[samples] = cells + np.arange(len(samples)) * places.shape[1]
        cells += places.size
    sample, column = row.owned
    return AttentionCells(
        tuple(torch.from_numpy(places).to(device) for _, places in grids),
        torch.from_numpy(start[sample] + column).to(device),
    )


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
    """Causal attention within each sample: a mask of all tokens by all tokens is never made, nor its zeros
    computed.

    Args:
        module: attention layer.
        query: [1, H, T, d].
        key: [1, H', T, d].
        value: [1, H', T, d].
        attention_mask: None, the samples are known.
        cells: where they stand.
        sliding_window: tokens that a token sees, itself included; None: all before it.
        kwargs: for transformers' sdpa.

    Returns:
        [1, T, H, d], and no attention weights.
    """
    outputs = []
    for places in cells.grids:
        q, k, v = (_laid_out(tensor, places) for tensor in (query, key, value))
        length = places.shape[1]
        mask = (
            _window_mask(length, sliding_window, q.device)
            if sliding_window is not None and length > sliding_window
            else None
        )
        outputs.append(sdpa_attention_forward(module, q, k, v, mask, **kwargs)[0].flatten(0, 1))
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return embedding(cells.back, joined.flatten(1)).unflatten(1, joined.shape[1:])[None], None


def _laid_out(states: Tensor, places: Tensor) -> Tensor:
    """[1, H, T, d] -> [R, H, L, d]. An embedding is what this is: its backward pass adds up in a fixed order,
    and faster than that of an index.
    """
    by_place = states[0].transpose(0, 1)
    return embedding(places, by_place.flatten(1)).unflatten(2, by_place.shape[1:]).transpose(1, 2)


def _window_mask(length: int, window: int, device: torch.device) -> Tensor:
    """[1, 1, length, length], True where a token sees."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril().triu(1 - window)[None, None]


AttentionInterface.register(PACKED_SDPA, packed_sdpa)
