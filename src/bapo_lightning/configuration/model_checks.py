"""Rules about the model's keys: those between keys, and those about what is installed here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from importlib.util import find_spec
from typing import Any, get_args

from bapo_lightning.modules.policy.options import Attention, LoraOptions, ModelOptions, Packing

Config = dict[str, Any]
ATTENTIONS, PACKINGS, DTYPES = get_args(Attention), get_args(Packing), ("float32", "bfloat16")
OPTIONS = {field.name for field in fields(ModelOptions)} | {"made_by", "architecture"}
LORA_OPTIONS = {field.name for field in fields(LoraOptions)}
NOT_ADAPTABLE = ("lm_head", "embed_tokens")


def model_complaints(config: Config) -> Iterator[str]:
    """What is wrong with `model` on any machine."""
    model = config["model"]
    for name in sorted(set(model) - OPTIONS):
        yield f"model.{name} is not an option of a model; it takes {', '.join(sorted(OPTIONS))}"
    if model["dtype"] not in DTYPES:
        why = ": gradients underflow in it" if model["dtype"] == "float16" else ""
        yield f"model.dtype={model['dtype']} cannot be trained in{why}; write one of {', '.join(DTYPES)}"
    if model["attention"] not in (None, *ATTENTIONS):
        yield (
            f"model.attention={model['attention']} is none of its values; write null or one of "
            f"{', '.join(ATTENTIONS)}"
        )
    if model["packing"] not in PACKINGS:
        yield f"model.packing={model['packing']} is none of its values; write one of {', '.join(PACKINGS)}"
    for name in ("activation_checkpointing", "liger"):
        if not isinstance(model[name], bool):
            yield f"model.{name}={model[name]} must be true or false"
    if model["attention"] == "flash_attention_2" and compute_dtype(config) == "float32":
        yield (
            "model.attention=flash_attention_2 computes in 16 bits, the update in float32; write "
            "model.dtype=bfloat16, or strategy=fsdp, whose strategy.compute_dtype=bfloat16 keeps float32 "
            "weights"
        )
    if model["lora"] is not None:
        yield from lora_complaints(model["lora"])


def compute_dtype(config: Config) -> str:
    """The dtype in which the decoder layers compute: the weights', unless the strategy casts them."""
    return str((config.get("strategy") or {}).get("compute_dtype") or config["model"]["dtype"])


def lora_complaints(lora: Any) -> Iterator[str]:
    """What is wrong with `model.lora`."""
    if not isinstance(lora, dict) or set(lora) != LORA_OPTIONS:
        yield (
            f"model.lora={lora} must have exactly the keys {', '.join(sorted(LORA_OPTIONS))}; write "
            "lora=default model.lora.rank=8"
        )
        return
    for name in ("rank", "alpha"):
        if isinstance(lora[name], bool) or not (isinstance(lora[name], int) and lora[name] >= 1):
            yield f"model.lora.{name}={lora[name]} must be a whole number of at least 1"
    targets = lora["target_modules"]
    if targets == "all-linear":
        return
    if not (isinstance(targets, list) and targets and all(isinstance(name, str) for name in targets)):
        yield (
            f"model.lora.target_modules={targets} must be all-linear, or names of linear layers, e.g. "
            "[q_proj,v_proj]"
        )
        return
    for name in set(targets) & set(NOT_ADAPTABLE):
        yield (
            f"model.lora.target_modules: {name} cannot be adapted, its weights are read directly; leave it "
            "out"
        )


def installed_complaints(config: Config) -> Iterator[str]:
    """What of `model` cannot run on this machine."""
    model = config["model"]
    kernels = {
        "model.attention=flash_attention_2": (
            model["attention"] == "flash_attention_2",
            "flash_attn",
            "model.attention=sdpa",
        ),
        "model.attention=flex_attention": (
            model["attention"] == "flex_attention",
            None,
            "model.attention=sdpa",
        ),
        "model.liger=true": (model["liger"] is True, "liger_kernel", "model.liger=false"),
    }
    for key, (wanted, package, instead) in kernels.items():
        accelerator = config["trainer"]["accelerator"]
        if wanted and not uses_gpu(accelerator):
            yield (
                f"{key} needs a GPU, and this machine offers none to trainer.accelerator={accelerator}; "
                f"write {instead}"
            )
        elif wanted and package is not None and find_spec(package) is None:
            yield (
                f"{key} needs a package that this machine does not have: pip install "
                f"{package.replace('_', '-')}; or write {instead}"
            )


def uses_gpu(accelerator: str) -> bool:
    """Whether Lightning trains on a GPU with this accelerator."""
    if accelerator == "auto":
        from torch.cuda import is_available

        return is_available()
    return accelerator in ("gpu", "cuda")
