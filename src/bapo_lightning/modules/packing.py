"""Packed sequences: one row without padding, in which no token sees another sequence.

Position ids restart at 0 with every sequence. What keeps sequences apart in attention depends on the kernel:

    flash_attention_2   its kernel for sequences of varying length, told where they end
    flex_attention      a block mask, which transformers derives from the position ids
    sdpa                `packed_sdpa` below: one call for each sequence
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from bapo_lightning.errors import ConfigError

PACKED_SDPA = "packed_sdpa"
ATTENTION_LAYERS = ("full_attention", "sliding_attention")
# Rotary embeddings that depend on the longest sequence at hand: there one packed sequence would change another.
LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")


def packed_attention(attention: str | None) -> str:
    """The implementation, by transformers' name, that serves packed sequences where `attention` (null: any) was asked for."""
    return PACKED_SDPA if attention in (None, "sdpa") else attention


def check_packable(model: PreTrainedModel) -> None:
    """Raises ConfigError unless attention is all that carries a token to another, and positions come from position ids."""
    config = model.config
    others = sorted(set(getattr(config, "layer_types", None) or ()) - set(ATTENTION_LAYERS))
    if others or getattr(model, "_is_stateful", False):
        found = f"layers of type {', '.join(others)}" if others else "a recurrent state"
        raise ConfigError([f"model.packing=padding_free: the model has {found}, which would mix sequences; write model.packing=none"])
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    if rope in LENGTH_DEPENDENT_ROPE:
        raise ConfigError(
            [f"model.packing=padding_free: rotary embeddings of type {rope} change with the longest sequence; write model.packing=none"]
        )
    if not model._supports_attention_backend:
        raise ConfigError([f"model.packing=padding_free: {type(model).__name__} brings its own attention; write model.packing=none"])


def packed_arguments(lengths: Sequence[int], attention: str, device: torch.device) -> dict[str, Any]:
    """What the model's forward pass is told about the sequences in its one row, beside the tokens.

    Args:
        lengths: tokens of each sequence.
        attention: `packed_attention`'s name.
        device: of the model.
    """
    sizes = np.asarray(lengths, np.int64)
    ends = sizes.cumsum()
    positions = np.arange(ends[-1]) - np.repeat(ends - sizes, sizes)
    arguments: dict[str, Any] = {"position_ids": torch.from_numpy(positions)[None].to(device)}
    if attention == PACKED_SDPA:
        arguments["sequence_lengths"] = list(lengths)
    elif attention == "flash_attention_2":  # said once here, it is not found out again in every layer
        boundaries = torch.from_numpy(np.concatenate([[0], ends]).astype(np.int32)).to(device)
        arguments |= {"cu_seq_lens_q": boundaries, "cu_seq_lens_k": boundaries}
        arguments |= {"max_length_q": max(lengths), "max_length_k": max(lengths)}
    return arguments


def packed_sdpa(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    sequence_lengths: list[int],
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each sequence, one after another: a mask of all tokens by all tokens is never made, nor its zeros computed.

    Args:
        module: attention layer.
        query: [1, H, T, d].
        key: [1, H', T, d].
        value: [1, H', T, d].
        attention_mask: None, the sequences are known.
        sequence_lengths: their tokens; the sum is T.
        sliding_window: tokens that a token sees, itself included; None: all before it.
        kwargs: for transformers' sdpa.

    Returns:
        [1, T, H, d], and no attention weights.
    """
    parts = (tensor.split(sequence_lengths, dim=2) for tensor in (query, key, value))
    outputs = []
    for q, k, v in zip(*parts, strict=True):
        mask = _window_mask(q.shape[2], sliding_window, q.device) if sliding_window is not None and q.shape[2] > sliding_window else None
        outputs.append(sdpa_attention_forward(module, q, k, v, mask, **kwargs)[0])
    return torch.cat(outputs, dim=1), None


def _window_mask(length: int, window: int, device: torch.device) -> Tensor:
    """[1, 1, length, length], True where a token sees."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril().triu(1 - window)[None, None]


AttentionInterface.register(PACKED_SDPA, packed_sdpa)
