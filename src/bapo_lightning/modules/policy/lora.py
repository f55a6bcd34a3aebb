"""LoRA through peft: adapters inside the model, merged weights outside of it.

The model keeps its class. An adapted layer `x` holds its weight as `x.base_layer.weight` and its addition as
`x.lora_A.default.weight` [rank, in] and `x.lora_B.default.weight` [out, rank].
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from bapo_lightning.modules.policy.options import LoraOptions
from bapo_lightning.rollout.engine import FACTOR_MARK, Wanted, weights_of
from bapo_lightning.system.errors import ConfigError, first_line
from bapo_lightning.system.precision import exported_dtype, stored_dtype
from bapo_lightning.system.ranks.collectives import full_tensor

ADAPTER = "default"
BASE_MARK = ".base_layer."  # in the name of every weight with an adapter


def add_adapters(model: PreTrainedModel, options: LoraOptions, on_meta: bool = False) -> None:
    """Freezes the model and adds trainable adapters in float32. They add zero at first, so the policy still
    equals the model. Raises ConfigError: `target_modules` names no linear layer, or also a part that is not
    linear, or the head or the embeddings, whose weights are read directly.
    """
    from peft import LoraConfig, inject_adapter_in_model
    from peft.tuners.tuners_utils import cast_adapter_dtype

    chosen = options.target_modules
    targets = chosen if isinstance(chosen, str) else list(chosen)
    config = LoraConfig(
        r=options.rank, lora_alpha=options.alpha, target_modules=targets, lora_dropout=0.0, bias="none"
    )
    key = f"model.lora.target_modules={targets}"
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "fan_in_fan_out")  # peft detects Conv1D
            inject_adapter_in_model(config, model, ADAPTER, low_cpu_mem_usage=on_meta)
    except ValueError as error:
        reason = first_line(error).removeprefix("[PEFT:PeftType.LORA] ").partition(". ")[0]
        raise ConfigError([f"{key}: {reason}; write {_other_targets(model, targets, reason)}"]) from None
    if is_adapted(model.get_output_embeddings()) or is_adapted(model.get_input_embeddings()):
        problem = (
            f"{key}: head and embeddings cannot be adapted, their weights are read directly; write "
            "all-linear, or names of layers inside the decoder"
        )
        raise ConfigError([problem])
    _check_adapted(model, key)
    cast_adapter_dtype(model, ADAPTER)  # small updates would vanish in bfloat16
    model.eval()


def _other_targets(model: PreTrainedModel, targets: str | list[str], reason: str) -> str:
    """Returns a replacement for targets that peft refuses: it refuses some layers by their name."""
    if targets != "all-linear":
        return "all-linear"
    names = {
        name.removesuffix(".base_layer").rpartition(".")[2]
        for name, layer in model.named_modules()
        if type(layer) in (nn.Linear, Conv1D) and ".lora_" not in name
        if layer is not model.get_output_embeddings()
    }
    possible = sorted(name for name in names if f"'{name}'" not in reason)
    return f"model.lora.target_modules=[{','.join(possible)}]"


def _check_adapted(model: PreTrainedModel, key: str) -> None:
    """Raises ConfigError if an adapter belongs to a part that is not a linear layer, such as all experts at
    once: neither merging nor an engine supports it.
    """
    layers: list[tuple[str, Any]] = [
        (name, layer) for name, layer in model.named_modules() if is_adapted(layer)
    ]
    others = [name for name, layer in layers if not _is_linear(layer.base_layer)]
    if not others:
        return
    linear = {name.rpartition(".")[2] for name, layer in layers if _is_linear(layer.base_layer)}
    possible = ",".join(sorted(linear)) or "q_proj,v_proj"
    reason = f"{others[0]} of {type(model).__name__} is not a linear layer"
    raise ConfigError([f"{key}: {reason}; write model.lora.target_modules=[{possible}]"])


@torch.no_grad()
def _is_linear(layer: nn.Module) -> bool:
    """Whether a layer returns one tensor, as linear layers do and some routers of experts do not."""
    if type(layer) in (nn.Linear, Conv1D):
        return True
    return isinstance(layer, nn.Linear) and isinstance(layer(layer.weight[:1]), Tensor)


def is_adapted(layer: Any) -> bool:
    """Whether a layer has an adapter."""
    return hasattr(layer, "lora_A")


def leave_casts_to_autocast(model: PreTrainedModel) -> None:
    """Lets adapters take their inputs as they are: autocast rounds them for both products, while peft would
    first make a float32 copy of every layer's input.
    """
    for layer in filter(is_adapted, model.modules()):
        layer.cast_input_dtype_enabled = False  # type: ignore[assignment]


def has_adapters(model: PreTrainedModel) -> bool:
    """Whether any layer of a model has an adapter."""
    return any(map(is_adapted, model.modules()))


@contextmanager
def without_adapters(model: PreTrainedModel) -> Iterator[None]:
    """Context in which a model computes as before training. Raises ValueError if it has no adapters."""
    layers: list[Any] = [layer for layer in model.modules() if is_adapted(layer)]
    if not layers:
        raise ValueError("the model has no adapters to leave out")
    scaling = [layer.scaling[ADAPTER] for layer in layers]
    try:
        for layer in layers:
            layer.scaling[ADAPTER] = 0.0
        yield
    finally:
        for layer, usual in zip(layers, scaling, strict=True):
            layer.scaling[ADAPTER] = usual


def base_weights(model: PreTrainedModel) -> list[tuple[str, Tensor]]:
    """Returns parameters and persistent buffers other than factors of adapters, without a tied head."""
    return [named for named in weights_of(model) if FACTOR_MARK not in named[0]]


def factors_of(model: PreTrainedModel, layer_name: str) -> tuple[Tensor, Tensor]:
    """Returns the factors of a layer's addition, up @ down [out, in]; the first is scaled."""
    layer: Any = model.get_submodule(layer_name)
    # Gathered first: a shard cannot be detached in inference mode, which vLLM uses to load.
    up, down = (full_tensor(factors[ADAPTER].weight).detach() for factors in (layer.lora_B, layer.lora_A))
    return up * layer.scaling[ADAPTER], down


class WeightPass:
    """One pass over a model's weights in an engine's form, and the share of the update that it keeps."""

    def __init__(self, model: PreTrainedModel, wanted: Wanted) -> None:
        self._model, self._wanted = model, wanted
        self._kept: list[Tensor] = []  # of each layer, on its device, so that the host does not wait for each
        self._whole: list[Tensor] = []

    @property
    def update_kept(self) -> float | None:
        """Projection of the delivered update on the trained one: 1 if nothing is lost; at first None."""
        kept, whole = (float(sum(part.double() for part in parts)) for parts in (self._kept, self._whole))
        return kept / whole if whole else None

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Yields pairs of a name, without marks of adapters, and a weight."""
        content, factors = self._wanted.content, list[str]()
        if content == "adapters" and not has_adapters(self._model):
            raise ValueError("the model has no adapters: all of its weights change")
        for name, parameter in base_weights(self._model):
            plain, layer = name.replace(BASE_MARK, "."), name.partition(BASE_MARK)[0]
            is_adapted = name.endswith(f"{BASE_MARK}weight")
            factors += [layer] if is_adapted else []
            if content == "adapters":
                continue
            weight = full_tensor(parameter).detach()
            if is_adapted and content == "merged":
                added = torch.matmul(*factors_of(self._model, layer))
                is_transposed = self._model.get_submodule(layer).fan_in_fan_out  # GPT-2's Conv1D
                yield plain, self._merged(plain, weight, added.T if is_transposed else added)
            else:
                yield plain, weight.to(self._dtype(plain, weight))
        for layer in factors if content != "merged" else ():
            yield from self._factors(layer)

    def _merged(self, name: str, weight: Tensor, added: Tensor) -> Tensor:
        merged = (weight + added).to(self._dtype(name, weight))
        self._kept.append(((merged.float() - weight.float()) * added).sum(dtype=torch.float64))
        self._whole.append((added * added).sum(dtype=torch.float64))
        return merged

    def _factors(self, layer: str) -> Iterator[tuple[str, Tensor]]:
        up, down = factors_of(self._model, layer)
        dtype = self._dtype(f"{layer}.weight", up)
        rounded_up, rounded_down = up.to(dtype), down.to(dtype)
        # <up' @ down', up @ down> without the products, which are as large as the layer.
        self._kept.append(((up.T @ rounded_up.float()) * (down @ rounded_down.float().T)).sum())
        self._whole.append(((up.T @ up) * (down @ down.T)).sum())
        yield f"{layer}{FACTOR_MARK}A.weight", rounded_down
        yield f"{layer}{FACTOR_MARK}B.weight", rounded_up

    def _dtype(self, name: str, weight: Tensor) -> torch.dtype:
        wanted = self._wanted.dtype
        if wanted is None or not weight.is_floating_point():
            return weight.dtype
        exported = exported_dtype if self._wanted.is_export else stored_dtype
        return exported(self._model, name, wanted)


def leave_frozen_weights_out(module: nn.Module) -> None:
    """Limits the module's state dict to trained weights; frozen ones are in the model's own files."""
    named = module.named_parameters(remove_duplicate=False)
    frozen = tuple(name for name, parameter in named if not parameter.requires_grad)
    if not frozen:
        return

    def drop(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        for name in frozen:
            state.pop(prefix + name, None)

    def expect(module: nn.Module, incompatible: Any) -> None:
        missing = incompatible.missing_keys
        missing[:] = [key for key in missing if not key.endswith(frozen)]

    module.register_state_dict_post_hook(drop)
    module.register_load_state_dict_post_hook(expect)
