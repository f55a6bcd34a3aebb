"""Random models of real shapes, made from a config: no weights are downloaded."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from transformers import AutoConfig
from updates import Size, additions, attach

from bapo_lightning.modules.bapo_module import BapoModule
from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.options import LoraOptions, ModelOptions
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.plan.model_shape import model_shape
from bapo_lightning.plan.run_shape import EngineShape, RunShape
from bapo_lightning.runs.build import build_algorithm
from bapo_lightning.system.chunks import chunk_elements

Architecture = dict[str, Any]


def architecture(family: str, vocabulary: int, tied: bool, *sizes: int) -> Architecture:
    """Returns config.json with width, width of the MLP, layers, heads and key-value heads."""
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    fixed = {"model_type": family, "vocab_size": vocabulary, "tie_word_embeddings": tied}
    shape = dict(zip((*names, "num_key_value_heads"), sizes, strict=True))
    return {**fixed, **shape, "max_position_embeddings": 32768}


SHAPES: dict[str, Architecture] = {
    "SmolLM2-135M": architecture("llama", 49152, True, 576, 1536, 30, 9, 3),
    "Qwen2.5-0.5B": architecture("qwen2", 151936, True, 896, 4864, 24, 14, 2),
    "Qwen2.5-1.5B": architecture("qwen2", 151936, True, 1536, 8960, 28, 12, 2),
    "Qwen2.5-3B": architecture("qwen2", 151936, True, 2048, 11008, 36, 16, 2),
    "Qwen2.5-7B": architecture("qwen2", 152064, False, 3584, 18944, 28, 28, 4),
}
# Heads of 128 in a width of 1,024, with norms of queries and keys.
SHAPES["Qwen3-0.6B"] = {**architecture("qwen3", 151936, True, 1024, 3072, 28, 16, 8), "head_dim": 128}
TINY = architecture("qwen2", 512, True, 128, 256, 2, 4, 2)  # heads of 32: vLLM's CPU kernels take no smaller
# Of 7B in 80 GB: adapters beside frozen weights, as in `bapo_7b_lora`.
LORA: dict[str, Any] = {
    **{"lora": LoraOptions(rank=16, alpha=32), "dtype": "bfloat16", "activation_checkpointing": True}
}


def fitting(name: str) -> dict[str, Any]:
    """Returns the options with which a model of `SHAPES` is trained on one GPU."""
    return LORA if name == "Qwen2.5-7B" else {}


def with_layers(architecture: Architecture, layers: int) -> Architecture:
    """Returns the same model with another depth."""
    return {**architecture, "num_hidden_layers": layers}


def random_policy(architecture: Architecture, device: str, is_mixed: bool = False, **options: Any) -> Policy:
    """Returns a random policy on the device.

    Args:
        architecture: config.json.
        device: cuda or cpu.
        is_mixed: its blocks compute in bfloat16.
        options: of `ModelOptions`.
    """
    config = AutoConfig.for_model(**architecture)
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        policy = build_policy(ModelOptions(folder, **options), 1.0, on_meta=True)
    policy.to_empty(device=device)
    policy.model.tie_weights()
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            # Norms' gains are 1; the rest is small, as initialised models are.
            if parameter.dim() == 1 and "norm" in name:
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, 0.02)
    rotary = policy.model.base_model.rotary_emb
    policy.model.base_model.rotary_emb = type(rotary)(policy.model.config).to(device)
    if is_mixed:
        policy.mix_precision()
    return policy


def ready_module(policy: Policy, budget: int, algorithm: str = "bapo") -> BapoModule:
    """Returns a module with this policy that can be stepped without a trainer.

    Args:
        policy: to train.
        budget: tokens of a micro-batch.
        algorithm: of `conf/algorithm/`.
    """
    config = additions(algorithm)
    optimizer = config.optimizer
    module = BapoModule(
        make_policy=lambda: policy,
        algorithm=build_algorithm(config.algorithm),
        optimizer=optimizer.optimizer.make(),
        scheduler=optimizer.scheduler.make(),
        micro_batch_tokens=budget,
        max_grad_norm=1.0,
        max_age=8,
        max_nonfinite_in_a_row=1,
    )
    return attach(module).to(policy.model.device)


def run_shape(architecture: Architecture, size: Size, **differing: Any) -> RunShape:
    """Describes updates of one minibatch to the plan, four samples at once.

    Args:
        architecture: config.json.
        size: of the minibatch.
        differing: fields of RunShape.
    """
    engine = EngineShape(
        "apart", tensor_parallel=1, num_gpus=1, element_bytes=2, memory_share=None, max_sequences=1
    )
    prompt, response = size.prompt_tokens, size.response_tokens
    if differing.get("on_gpu"):
        differing["chunk_elements"] = chunk_elements(torch.cuda.get_device_properties(0).total_memory)
    return RunShape(
        **{
            **{"model": model_shape(architecture), "strategy": "single", "num_gpus": 1},
            **{"stored_bytes": 4, "compute_bytes": 4, "micro_batch_tokens": 4 * (prompt + response)},
            **{"prompt_tokens": prompt, "response_tokens": response, "prompts_per_batch": size.groups},
            **{"group_size": size.group_size, "epochs": 1, "minibatches": 1, "engine": engine},
            **{"searches": True, **differing},
        }
    )
