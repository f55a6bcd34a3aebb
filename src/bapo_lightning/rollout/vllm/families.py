"""Corrections of vLLM for single families of models."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
from vllm.model_executor.model_loader.reload.meta import SKIP_TENSORS

# vLLM's loader writes some of its weights into parameters, and a reload loses them.
GPT_OSS = "GptOssForCausalLM"
# Experts in its files, and the names under which vLLM's loader takes them one by one.
EXPERTS = re.compile(r"(.*\.mlp\.experts\.)(gate_up|down)_proj(?:_(bias))?")
NAMES = {"gate_up": "w13", "down": "w2"}
SKIP_TENSORS.add("sinks")  # written by the loader, so they stay in memory during a reload


def experts_apart(name: str, weight: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yields the experts of a weight [experts, ...] one by one, and any other weight as it is."""
    if (match := EXPERTS.fullmatch(name)) is None:
        yield name, weight
        return
    kind = f"{NAMES[match[2]]}_{match[3] or 'weight'}"
    for number, expert in enumerate(weight):
        yield f"{match[1]}{number}.{kind}", expert


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
