"""Builds policies; the only place that combines the options of a model.

weights or meta device -> attention kernel -> Liger kernels -> LoRA -> compiling -> activation checkpointing
                                                                                head for log Z -+-> Policy
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_flash_attention_utils import lazy_import_flash_attention

from bapo_lightning.data.batches.model_input import model_input
from bapo_lightning.modules.policy.file_names import note_file_names
from bapo_lightning.modules.policy.log_z import LogZ
from bapo_lightning.modules.policy.lora import add_adapters
from bapo_lightning.modules.policy.options import FLASH_HUB, ModelOptions
from bapo_lightning.modules.policy.packing import PACKED_SDPA, check_packable, packed_attention
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.system.errors import ConfigError, first_line
from bapo_lightning.system.hub import stay_offline_without_hub
from bapo_lightning.system.pretrained import building, load_whole, weight_names
from bapo_lightning.system.random_states import random_states_kept
from bapo_lightning.types import FinishReason, Rollout, Segment

# Operators whose results selective checkpointing keeps. A batched product is not among them: it would be the
# [T, T] scores of attention without a kernel.
ATTENTION_KERNELS = ("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention")
PRODUCTS = {
    *("aten::mm", "aten::addmm", "torch_attn::_varlen_attn"),
    *("flash_attn::_flash_attn_forward", "flash_attn::_flash_attn_varlen_forward"),
    *(f"aten::_scaled_dot_product_{name}" for name in ATTENTION_KERNELS),
}
LOG_Z_SEED = 0  # of the head's first weights
# Of `check_scores`, in nats per token. A multiplier of 0.5 in the head of a small random model is 0.44 off.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.2}
PROMPT, RESPONSES = [1, 2, 3, 4], ([5, 6, 7], [6, 5])


def build_policy(
    options: ModelOptions,
    temperature: float,
    on_meta: bool = False,
    log_z: bool = False,
    frozen: bool = False,
    is_cut: bool = False,
    seed: int = 0,
) -> Policy:
    """Returns a policy with the weights of `options.path`. Dropout stays off: with dropout the ratio would
    not be 1 for unchanged weights. Raises ConfigError: the model cannot have these options; DataError: no
    model can be built from the files.

    Args:
        options: choices about the model.
        temperature: see `Policy`, like `is_cut`.
        on_meta: build shapes without memory and read no weights, for measurements and for ranks that receive
            their weights.
        log_z: add a head for log Z.
        frozen: train nothing, so that the policy has no state either.
        is_cut: see `Policy`.
        seed: seed of the adapters' first weights, which are the same for any number of ranks and any engine.
    """
    packed = options.packing == "padding_free"
    with building(options.path, options.context_length) as config:
        model = _model_of(options, config, on_meta)
        model.config.use_cache = False
        model.eval()
        if packed:
            check_packable(model)
        if not on_meta:
            check_scores(model)
    if options.liger:
        _use_liger(model)
    if options.lora is not None:
        with random_states_kept(seed):
            add_adapters(model, options.lora, on_meta)
    if options.activation_checkpointing == "selective":  # the operators of compiled layers are hidden
        checkpoint_layers(decoder_layers(model), keeps_products=True)
    if options.compile:  # for any number of tokens; all layers share one function, compiled once
        _replace_forward(decoder_layers(model), lambda forward: torch.compile(forward, dynamic=True))
    if options.activation_checkpointing is True:
        checkpoint_layers(decoder_layers(model))
    if frozen:
        model.requires_grad_(False)
    log_z_layers = _log_z(model, on_meta) if log_z else None
    return Policy(model, temperature, packed, log_z_layers, is_cut, options.head)


@torch.no_grad()
def check_scores(model: PreTrainedModel) -> None:
    """Scores a few tokens as a policy does, and with the model's own logits, and compares them.

    A policy multiplies the last hidden states by the head's weights. A head that does more, whatever its
    option is called, gives other numbers; so does a model in which tokens of a row without padding interact
    outside of attention. A kernel that needs a GPU is not used: the head is checked with torch's. The weights
    are on a CPU. Raises ConfigError: the numbers differ, or the model does not take the arguments of packing.
    """
    kernel = model.config._attn_implementation
    packed = kernel == PACKED_SDPA
    rollouts = [_rollout(response, model.config.vocab_size) for response in RESPONSES]
    try:
        if kernel not in (PACKED_SDPA, "sdpa", "eager"):
            model.set_attn_implementation("sdpa")
        policy = Policy(model, 1.0, packed)
        # One pass on this rank alone: if several train, the others have no weights yet.
        scored, _ = policy(model_input(rollouts, torch.device("cpu"), policy.layout))
        if packed:
            model.set_attn_implementation("sdpa")
        expected = [_logprobs(model, rollout) for rollout in rollouts]
    except TypeError as error:
        reason = f"{type(model).__name__} does not take its arguments ({error})"
        raise ConfigError([f"model.packing=padding_free: {reason}; write model.packing=none"]) from None
    finally:
        if model.config._attn_implementation != kernel:
            model.set_attn_implementation(kernel)
    difference = float((scored.float() - torch.cat(expected)).abs().max())
    if not difference <= TOLERANCE[model.dtype]:
        cause = "with model.packing=padding_free its sequences mix, or its" if packed else "its"
        scores = f"token scores of {type(model).__name__} would be {difference:.2g} nats off"
        reason = f"{cause} head does more than a matrix product"
        raise ConfigError([f"model.path: {scores}: {reason}; use another model"])


def _rollout(response: list[int], vocab_size: int) -> Rollout:
    prompt, response = ([token % vocab_size for token in tokens] for tokens in (PROMPT, response))
    segment = Segment(array("i", response), array("f", [0.0] * len(response)), 0)
    return Rollout(array("i", prompt), (segment,), FinishReason.STOP)


def _logprobs(model: PreTrainedModel, rollout: Rollout) -> Tensor:
    response = torch.tensor(rollout.response_ids)
    tokens = torch.cat([torch.tensor(rollout.prompt_ids), response])
    logits = model(tokens[None], use_cache=False).logits[0, len(rollout.prompt_ids) - 1 : -1]
    return logits.float().log_softmax(-1).gather(-1, response[:, None])[:, 0]


def _log_z(model: PreTrainedModel, on_meta: bool) -> LogZ:
    # In the precision of the trained weights, which FSDP gathers together with it; the same in every run, for
    # any number of ranks and earlier random draws.
    dtype = next(each.dtype for each in model.parameters() if each.requires_grad)
    with random_states_kept(LOG_Z_SEED), torch.device("meta" if on_meta else "cpu"):
        return LogZ(model.get_output_embeddings().weight.shape[1]).to(dtype)


def decoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    """Returns the model's decoder layers in order, the units of checkpointing and sharding. Raises
    ConfigError if the model does not keep them in the same place as known models.
    """
    layers = getattr(model.base_model, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        remedy = "use a decoder-only model, e.g. Llama or Qwen"
        raise ConfigError([f"{type(model).__name__} has no list of decoder layers; {remedy}"])
    return list(layers)


def checkpoint_layers(layers: Sequence[nn.Module], keeps_products: bool = False) -> None:
    """Makes each layer keep only its input and compute its activations again in the backward pass (arXiv
    1604.06174). With `keeps_products` it also keeps the results of products and attention, so that only
    norms, rotations and the activation function are computed again (arXiv 2205.05198).

    transformers' own checkpointing works only in train mode, and a policy is in eval mode; torch's wrapper
    changes the names of the weights. So each layer gets another class, which FSDP2 can still shard.
    """
    contexts = _kept_products if keeps_products else noop_context_fn

    def checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
        def kept(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            compute = partial(forward, self)
            if not torch.is_grad_enabled():
                return compute(*args, **kwargs)
            how: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
            return checkpoint(compute, *args, **how, context_fn=contexts, **kwargs)

        return kept

    _replace_forward(layers, checkpointed)


def _kept_products() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    def policy(_: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        is_kept = operator.name() in PRODUCTS
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def _replace_forward(
    layers: Sequence[nn.Module], change: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Gives each layer a subclass of its class with another forward pass."""
    classes = {
        each: type(each.__name__, (each,), {"forward": change(each.forward), "__module__": each.__module__})
        for each in {type(layer) for layer in layers}
    }
    for layer in layers:
        layer.__class__ = classes[type(layer)]


def _attention(options: ModelOptions) -> dict[str, str]:
    """Returns the argument that names the kernel, or none if the model chooses. A kernel of the hub is
    fetched here, so that a failure is not mistaken for a fault of the model.
    """
    if options.attention == FLASH_HUB:
        stay_offline_without_hub()
        try:
            lazy_import_flash_attention(options.attention)
        except (ImportError, ValueError) as error:
            reason = first_line(error).rstrip(".:")
            raise ConfigError(
                [f"model.attention={FLASH_HUB} could not be loaded ({reason}); write model.attention=sdpa"]
            ) from None
    if options.packing == "padding_free":
        return {"attn_implementation": packed_attention(options.attention)}
    return {} if options.attention is None else {"attn_implementation": options.attention}


def _model_of(options: ModelOptions, config: Any, on_meta: bool) -> PreTrainedModel:
    choices = {"dtype": getattr(torch, options.dtype), **_attention(options)}
    # Code in a model's folder is never run, and the user is not asked about it.
    if on_meta:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, **choices)
        if names := weight_names(options.path):
            note_file_names(model, names)
        return model
    whole: PreTrainedModel = load_whole(AutoModelForCausalLM, options.path, config=config, **choices)
    return whole


def _use_liger(model: PreTrainedModel) -> None:
    """Replaces RMSNorm, SwiGLU and rotary embeddings, but not the loss, since token scores have their own.

    Liger also replaces the classes in the model's Python module, so later models of the same type in this
    process have them as well.
    """
    from liger_kernel.transformers.monkey_patch import (
        MODEL_TYPE_TO_APPLY_LIGER_FN,
        _apply_liger_kernel_to_instance,
    )

    if model.config.model_type not in MODEL_TYPE_TO_APPLY_LIGER_FN:
        reason = f"Liger has no kernels for models of type {model.config.model_type}"
        raise ConfigError([f"model.liger: {reason}; write model.liger=false"])
    _apply_liger_kernel_to_instance(model, cross_entropy=False, fused_linear_cross_entropy=False)
