"""KV cache with room for whole responses: a step writes one column and copies nothing; and attention of one
new token over it.
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, Cache, DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from bapo_lightning.precision import attention_on_cpu, with_whole_heads

CACHED_SDPA = "cached_sdpa"
sdpa = with_whole_heads(sdpa_attention_forward)


def roomy_cache(capacity: int, dtype: torch.dtype | None = None) -> Cache:
    """Makes a cache of `capacity` tokens per row, in `dtype` or that of keys and values."""
    return Cache(layer_class_to_replicate=partial(RoomyLayer, capacity, dtype))  # type: ignore[arg-type]


class RoomyLayer(DynamicLayer):
    """Keys and values [rows, heads, tokens, width]: views of buffers of `capacity` tokens. transformers' own
    dynamic layer concatenates in every step, and its static one cannot lose rows.
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
        """Writes new tokens behind the present ones. Raises RuntimeError beyond `capacity` tokens."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            # unlike a slice, narrow raises beyond the end
            buffer[: len(states)].narrow(2, start, states.shape[-2]).copy_(states)
        return self._show(len(key_states), end)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keeps the rows `indices`, in order, repeats allowed; fewer rows stay in the same buffers."""
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
        """Moves all tokens `shift` columns to the right, or to the left and the first ones out, in buffers
        for so many rows and tokens at least. Columns that become free are 0, since nothing else is sure to
        be a number.
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
        """Puts the rows of another layer behind its own, for which there is room; both end in the same
        column.
        """
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
    """Computes attention of the last tokens over all; where there is one of each row, the heads that share
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
