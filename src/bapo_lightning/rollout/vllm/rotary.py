"""Corrects vLLM's rotary embeddings on a CPU for queries of shape [tokens, heads, size]."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding


def let_heads_be_rotated() -> None:
    """Flattens heads for vLLM 0.32's CPU kernel, which takes [tokens, heads x size] and would rotate only
    some rows of the heads (LFM2, latent attention of DeepSeek): log-probs would be off by 0.01 to 0.4 nats.
    """
    kernel = RotaryEmbedding.forward_cpu

    def forward_cpu(
        self: Any, positions: Tensor, query: Tensor, key: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        if query.ndim != 3 or positions.ndim != 1:
            return kernel(self, positions, query, key)
        flat = None if key is None else key.flatten(1)
        turned, turned_key = kernel(self, positions, query.flatten(1), flat)
        return turned.view(query.shape), None if key is None else turned_key.view(key.shape)

    RotaryEmbedding.forward_cpu = forward_cpu
