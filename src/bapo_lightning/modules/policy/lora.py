"""LoRA through peft: adapters inside the model, merged weights outside of it.

The model keeps its class. An adapted layer `x` holds its weight as `x.base_layer.weight` and its addition as
`x.lora_A.default.weight` [rank, in] and `x.lora_B.default.weight` [out, rank].
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from bapo_lightning.errors import ConfigError
from bapo_lightning.modules.policy.options import LoraOptions
from bapo_lightning.ranks.collectives import full_tensor

ADAPTER = "default"
ADAPTER_MARK = ".lora_"  # in the name of every weight of an adapter
BASE_MARK = ".base_layer."  # in the name of every weight that an adapter adds to


def add_adapters(model: PreTrainedModel, options: LoraOptions, on_meta: bool = False) -> None:
    """Freezes the model and adds trainable adapters in float32. They add zero at first, so the policy is
    still the model.

    Raises:
        ConfigError: `target_modules` names no linear layer, or names the head or the embeddings, whose
            weights are read directly.
    """
    from peft import LoraConfig, inject_adapter_in_model
    from peft.tuners.tuners_utils import cast_adapter_dtype

    targets = (
        options.target_modules if isinstance(options.target_modules, str) else list(options.target_modules)
    )
    try:
        inject_adapter_in_model(
            LoraConfig(
                r=options.rank,
                lora_alpha=options.alpha,
                target_modules=targets,
                lora_dropout=0.0,
                bias="none",
            ),
            model,
            ADAPTER,
            low_cpu_mem_usage=on_meta,
        )
    except ValueError as error:
        raise ConfigError(
            [f"model.lora.target_modules={targets}: {str(error).splitlines()[0]} write all-linear"]
        ) from None
    for layer in (model.get_output_embeddings(), model.get_input_embeddings()):
        if is_adapted(layer):
            raise ConfigError(
                [
                    f"model.lora.target_modules={targets}: head and embeddings cannot be adapted, their "
                    "weights are read directly; write all-linear, or names of layers inside the decoder"
                ]
            )
    cast_adapter_dtype(model, ADAPTER)  # small updates would vanish in bfloat16
    model.eval()


def is_adapted(layer: Any) -> bool:
    """Whether a layer has an adapter."""
    return hasattr(layer, "lora_A")


def has_adapters(model: PreTrainedModel) -> bool:
    """Whether a model was made ready by `add_adapters`."""
    return any(map(is_adapted, model.modules()))


@contextmanager
def without_adapters(model: PreTrainedModel) -> Iterator[None]:
    """Context in which a model with adapters computes as it did before it was trained.

    Raises:
        ValueError: it has none.
    """
    if not has_adapters(model):
        raise ValueError("the model has no adapters to leave out")
    layers: list[Any] = [layer for layer in model.modules() if is_adapted(layer)]
    scaling = [layer.scaling[ADAPTER] for layer in layers]
    try:
        for layer in layers:
            layer.scaling[ADAPTER] = 0.0
        yield
    finally:
        for layer, usual in zip(layers, scaling, strict=True):
            layer.scaling[ADAPTER] = usual


def merged_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Yields all weights, adapters merged, under the names that they have without adapters. A tied head is
    left out.
    """
    for name, parameter in _base_parameters(model):
        yield name.replace(BASE_MARK, "."), _merged(model, name, parameter)


def num_merged_weights(model: PreTrainedModel) -> int:
    """Number of weights that `merged_weights` yields."""
    return len(_base_parameters(model))


def _base_parameters(model: PreTrainedModel) -> list[tuple[str, Tensor]]:
    return [found for found in model.named_parameters() if ADAPTER_MARK not in found[0]]


def _merged(model: PreTrainedModel, name: str, parameter: Tensor) -> Tensor:
    # Gathered first: a shard cannot be detached in inference mode, in which vLLM loads.
    weight = full_tensor(parameter).detach()
    layer_name, mark, last = name.partition(BASE_MARK)
    if not mark or last != "weight":
        return weight
    layer: Any = model.get_submodule(layer_name)
    down, up = (full_tensor(factors[ADAPTER].weight).detach() for factors in (layer.lora_A, layer.lora_B))
    return (weight + (up @ down) * layer.scaling[ADAPTER]).to(weight.dtype)


def leave_frozen_weights_out(module: nn.Module) -> None:
    """Limits the module's state dict to trained weights; frozen ones are in the model's own files."""
    frozen = {
        name
        for name, parameter in module.named_parameters(remove_duplicate=False)
        if not parameter.requires_grad
    }
    if not frozen:
        return

    def drop(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        for name in frozen:
            state.pop(prefix + name, None)

    def expect(module: nn.Module, incompatible: Any) -> None:
        incompatible.missing_keys[:] = [
            key for key in incompatible.missing_keys if not key.endswith(tuple(frozen))
        ]

    module.register_state_dict_post_hook(drop)
    module.register_load_state_dict_post_hook(expect)
