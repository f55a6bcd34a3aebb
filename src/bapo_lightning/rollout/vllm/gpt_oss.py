"""Weights of GPT-OSS. vLLM's loader writes some of them into parameters, and a reload loses them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import Tensor
from vllm.model_executor.model_loader.reload.meta import SKIP_TENSORS

MODEL = "GptOssForCausalLM"
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
