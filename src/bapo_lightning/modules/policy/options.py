"""Choices about the model: the options of the configuration's `model` node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import Annotated, Any, Final, Literal

from annotated_types import MinLen

from bapo_lightning.system.host import missing_to_build
from bapo_lightning.system.values import Advice, Count, TrainDtype

# transformers' names; then prebuilt flash attention from the kernels hub, and torch's own.
Attention = Literal["sdpa", "flash_attention_2", "flex_attention", "kernels-community/flash-attn2", "varlen"]
FLASH_HUB: Final = "kernels-community/flash-attn2"
VARLEN: Final = "varlen"
FLASH: Final = ("flash_attention_2", FLASH_HUB, VARLEN)  # 16 bits, and sequences of varying length
Packing = Literal["none", "padding_free"]
# selective: products and attention are kept, and only the rest is computed again.
Checkpointing = Annotated[bool | Literal["selective"], Advice("must be true, false or selective")]
Liger = Annotated[bool | Literal["auto"], Advice("must be true, false or auto")]
Head = Literal["own", "liger", "auto"]  # what computes token scores; auto: Liger's where it can
Targets = Annotated[
    Literal["all-linear"] | Annotated[tuple[str, ...], MinLen(1)],
    Advice("must be all-linear, or names of linear layers, e.g. [q_proj,v_proj]"),
]
NOT_ADAPTABLE = ("lm_head", "embed_tokens")


@dataclass(frozen=True, slots=True)
class LoraOptions:
    """Low-rank additions (LoRA, arXiv 2106.09685). Without dropout, with which the ratio would not be 1
    for unchanged weights.
    """

    rank: Count
    alpha: Count  # additions are scaled by alpha / rank
    target_modules: Targets = "all-linear"  # names of linear layers; all-linear leaves out the output head

    @staticmethod
    def problems(options: Mapping[str, Any]) -> Iterator[str]:
        """Yields mistakes in the layers to adapt."""
        for name in NOT_ADAPTABLE:
            if name in options["target_modules"]:
                yield f"target_modules: {name} cannot be adapted, its weights are read directly; leave it out"


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How a policy is built. `conf/model/base.yaml` explains each option."""

    path: str  # a folder or a hub name
    dtype: TrainDtype = "float32"
    attention: Attention | None = None
    packing: Packing = "none"
    activation_checkpointing: Checkpointing = False
    compile: bool = False
    liger: bool = False
    lora: LoraOptions | None = None
    context_length: int | None = None  # tokens of the longest text; None: the model's number of positions
    head: Head = "own"

    @classmethod
    def of(
        cls, section: Any, path: str, on_gpu: bool = False, context_length: int | None = None
    ) -> ModelOptions:
        """Returns the options of a run's model from the configuration's `model`, or its resolved mapping, and
        the folder or hub name that its path stands for. `on_gpu`: whether it is trained on a GPU.
        `context_length`: tokens of the run's longest text.
        """
        values = dict(section)
        if values.get("liger") == "auto":  # with its kernels, and a compiler for Triton's launcher
            is_here = find_spec("liger_kernel") is not None and missing_to_build("C") is None
            is_alone = not values.get("compile") and values.get("activation_checkpointing") != "selective"
            values["liger"] = on_gpu and is_here and is_alone
        if values.get("lora") is not None:
            values["lora"] = LoraOptions(**dict(values["lora"]))
        known = {field.name: values[field.name] for field in fields(cls) if field.name in values}
        return cls(**{**known, "path": path, "context_length": context_length})
