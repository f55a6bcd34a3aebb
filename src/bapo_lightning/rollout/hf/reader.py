"""Reads tokens into a model's KV cache and returns the logits of the next tokens.

The cache has room for whole responses: a step writes one column and copies nothing. Attention of one new
token over it copies no key.

Shapes: B rows, T new tokens, L tokens in the cache, V vocabulary.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence
from transformers import AttentionInterface, AttentionMaskInterface, Cache, DynamicLayer, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from bapo_lightning.system.precision import (
    attention_on_cpu,
    blocks,
    cache_dtype,
    head_products,
    with_whole_heads,
)

CACHED_SDPA = "cached_sdpa"
sdpa = with_whole_heads(sdpa_attention_forward)


@dataclass(frozen=True, eq=False)
class Reader:
    """A model that reads tokens into a cache."""

    model: PreTrainedModel
    is_mixed: bool  # round like a trainer in mixed precision
    device: torch.device

    def next_logits(
        self, token_ids: Tensor, cache: Cache, mask: Tensor | None, positions: Tensor | None
    ) -> Tensor:
        """Reads `token_ids[B, T]` and returns the logits [B, V] of the next tokens. `mask[B, L + T]`: 0 at
        padding; `positions[B, T]`: of the tokens in their rows; None for both without padding.
        """
        arguments = {"attention_mask": mask, "position_ids": positions}
        with blocks(self.is_mixed, token_ids.device):
            states = self.model.base_model(
                token_ids, **arguments, past_key_values=cache, use_cache=True
            ).last_hidden_state
        with head_products(self.is_mixed, token_ids.device):
            logits: Tensor = self.model.get_output_embeddings()(states[:, -1])
        return logits

    def opened(self, contexts: Sequence[array[int]], new_tokens: int) -> tuple[Cache, Tensor]:
        """Reads whole contexts, equal ones once, padded on the left. Returns a cache with room for
        `new_tokens` more, and the logits [B, V] of the next tokens.
        """
        number: dict[bytes, int] = {}
        owner = [number.setdefault(context.tobytes(), len(number)) for context in contexts]
        token_ids, mask = _left_padded([array("i", context) for context in number], self.device)
        cache = roomy_cache(
            token_ids.shape[1] + new_tokens, cache_dtype(self.device) if self.is_mixed else None
        )
        shown = None if bool(mask.all()) else mask
        positions = None if shown is None else (mask.cumsum(-1) - 1).clamp_min(0)
        logits = self.next_logits(token_ids, cache, shown, positions)
        if len(number) < len(contexts):
            rows = torch.tensor(owner, device=self.device)
            move_rows(cache, rows)
            logits = logits[rows]
        return cache, logits


def _left_padded(sequences: Sequence[array[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    rows = [torch.tensor(sequence, dtype=torch.long) for sequence in sequences]
    kept = [torch.ones_like(row) for row in rows]
    token_ids, mask = (pad_sequence(each, batch_first=True, padding_side="left") for each in (rows, kept))
    return token_ids.to(device), mask.to(device)


def roomy_cache(capacity: int, dtype: torch.dtype | None = None) -> Cache:
    """Makes a cache of `capacity` tokens per row, in `dtype` or the dtype of keys and values."""
    return Cache(layer_class_to_replicate=partial(RoomyLayer, capacity, dtype))  # type: ignore[arg-type]


class RoomyLayer(DynamicLayer):
    """Keys and values [rows, heads, tokens, width]: views of buffers of `capacity` tokens. transformers'
    dynamic layer concatenates in every step, and its static layer cannot drop rows.
    """

    def __init__(self, capacity: int, dtype: torch.dtype | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._capacity, self._dtype = capacity, dtype

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Makes the buffers for the first number of rows."""
        super().lazy_initialization(key_states, value_states)
        self._buffers = [self._room(states, len(states)) for states in (key_states, value_states)]

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Writes new tokens behind the present tokens. Raises RuntimeError beyond `capacity` tokens."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            # unlike a slice, narrow raises beyond the end
            buffer[: len(states)].narrow(2, start, states.shape[-2]).copy_(states)
        return self._show(len(key_states), end)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keeps the rows `indices`, in order, repeats allowed; fewer rows use the same buffers."""
        length, count = self.get_seq_length(), len(indices)
        for index, buffer in enumerate(self._buffers):
            chosen = buffer[:, :, :length].index_select(0, indices)
            if count > len(buffer):
                self._buffers[index] = buffer = self._room(chosen, count)
            buffer[:count, :, :length] = chosen
        self._show(count, length)

    def move_into(self, holes: Tensor, sources: Tensor, count: int) -> None:
        """Moves rows `sources` into the places `holes`; the first `count` rows stay."""
        length = self.get_seq_length()
        for buffer in self._buffers:
            buffer[holes, :, :length] = buffer[sources, :, :length]
        self._show(count, length)

    def move_content(self, shift: int, rows: int, capacity: int) -> None:
        """Moves all tokens `shift` columns to the right, or to the left, which drops the first ones, in
        buffers for at least `rows` rows and `capacity` tokens. Columns that become free are set to 0, since
        other content may be NaN.
        """
        count, length = self._count, self.get_seq_length()
        for index, buffer in enumerate(self._buffers):
            is_small = rows > len(buffer) or capacity > buffer.shape[2]
            if shift or is_small:
                kept = buffer[:count, :, max(-shift, 0) : length].clone()
                if is_small:
                    self._capacity = max(capacity, buffer.shape[2])
                    buffer = self._buffers[index] = self._room(buffer, max(rows, len(buffer)))
                buffer[:count, :, : max(shift, 0)] = 0
                buffer[:count, :, max(shift, 0) : length + shift] = kept
        self._show(count, length + shift)

    def put_behind(self, other: RoomyLayer) -> None:
        """Puts another layer's rows behind its own, in the room there; both end in the same column."""
        count, length, width = self._count, self.get_seq_length(), other.get_seq_length()
        end = count + other._count
        for buffer, states in zip(self._buffers, other._buffers, strict=True):
            buffer[count:end, :, : length - width] = 0
            buffer[count:end, :, length - width : length] = states[: other._count, :, :width]
        self._show(end, length)

    def _room(self, states: Tensor, rows: int) -> Tensor:
        return states.new_empty(
            rows, states.shape[1], self._capacity, states.shape[3], dtype=self._dtype or states.dtype
        )

    def _show(self, rows: int, length: int) -> tuple[Tensor, Tensor]:
        keys, values = (buffer[:rows, :, :length] for buffer in self._buffers)
        self.keys, self.values, self._count = keys, values, rows
        return keys, values


def move_rows(cache: Cache, indices: Tensor) -> None:
    """Keeps the rows `indices` in every layer."""
    for layer in _roomy(cache):
        layer.batch_select_indices(indices)


def move_into(cache: Cache, holes: Tensor, sources: Tensor, count: int) -> None:
    """`RoomyLayer.move_into` in every layer."""
    for layer in _roomy(cache):
        layer.move_into(holes, sources, count)


def move_content(cache: Cache, shift: int, rows: int, capacity: int) -> None:
    """`RoomyLayer.move_content` in every layer."""
    for layer in _roomy(cache):
        layer.move_content(shift, rows, capacity)


def put_behind(cache: Cache, other: Cache) -> None:
    """`RoomyLayer.put_behind` in every layer."""
    for layer, entering in zip(_roomy(cache), _roomy(other), strict=True):
        layer.put_behind(entering)


def _roomy(cache: Cache) -> list[RoomyLayer]:
    return cast(list[RoomyLayer], cache.layers)


@attention_on_cpu
def cached_sdpa(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Computes attention of the last tokens over all tokens; with one token per row, the heads that share
    keys become rows of one product, so that no key is copied.

    Takes query [B, H, T, d], key and value [B, H', L, d]; `scaling` None means 1 / sqrt(d). Returns [B, T, H,
    d].
    """
    if query.shape[2] > 1:
        return sdpa(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    rows = query.reshape(len(query), key.shape[1], -1, query.shape[3])
    result = scaled_dot_product_attention(rows, key, value, attn_mask=attention_mask, scale=scaling)
    return result.reshape(len(query), 1, query.shape[1], -1), None


AttentionInterface.register(CACHED_SDPA, cached_sdpa)
AttentionMaskInterface.register(CACHED_SDPA, sdpa_mask)
