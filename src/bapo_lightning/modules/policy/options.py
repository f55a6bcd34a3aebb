"""Choices about the model, as they stand in the configuration's `model` node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ATTENTIONS = ("sdpa", "flash_attention_2", "flex_attention")
DTYPES = ("float32", "bfloat16")
PACKINGS = ("none", "padding_free")


@dataclass(frozen=True, slots=True)
class LoraOptions:
    """Low-rank additions (LoRA, arXiv 2106.09685). No dropout: with it the ratio would not be 1 for unchanged
    weights.
    """

    rank: int
    alpha: int  # additions are scaled by alpha / rank
    target_modules: str | tuple[str, ...] = (
        "all-linear"  # names of linear layers; all-linear leaves out the output head
    )


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How a policy is built. `conf/model/base.yaml` says what each key means."""

    path: str  # a folder or a hub name
    dtype: str = "float32"
    attention: str | None = None
    packing: str = "none"
    activation_checkpointing: bool = False
    liger: bool = False
    lora: LoraOptions | None = None

    @classmethod
    def of(cls, section: Any, path: str) -> ModelOptions:
        """From the configuration's `model` section, and the path that its own stands for."""
        lora = section.lora
        targets = lora.target_modules if lora else ()
        return cls(
            path=path,
            dtype=section.dtype,
            attention=section.attention,
            packing=section.packing,
            activation_checkpointing=section.activation_checkpointing,
            liger=section.liger,
            lora=LoraOptions(lora.rank, lora.alpha, targets if isinstance(targets, str) else tuple(targets))
            if lora
            else None,
        )
