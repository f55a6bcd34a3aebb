"""Small models of the families that are trained, and their folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, PreTrainedModel, Qwen2Config, Qwen3Config
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.options import LoraOptions, ModelOptions

SIZES: dict[str, Any] = {
    "vocab_size": 24, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip
FAMILIES: dict[str, Any] = {
    "llama": lambda: LlamaConfig(**SIZES, tie_word_embeddings=True),
    "qwen2": lambda: Qwen2Config(**SIZES, tie_word_embeddings=False),
    "qwen2_windowed": lambda: Qwen2Config(
        **SIZES, use_sliding_window=True, sliding_window=5, max_window_layers=1
    ),
    "qwen3": lambda: Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True),
}


def family_model(name: str, seed: int = 0) -> PreTrainedModel:
    """Weights large enough that tokens depend on all that stands before them."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(FAMILIES[name]()).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "norm" not in parameter_name:
                parameter.mul_(6.0)
    return model


def family_folder(name: str, folder: Path, seed: int = 0) -> str:
    """The same, saved."""
    family_model(name, seed).save_pretrained(folder)
    return str(folder)


def adapted(folder, dtype="float32", targets="all-linear", **options):
    """The policy of a saved model, with adapters that add something."""
    lora = LoraOptions(4, 8, targets)
    policy = build_policy(ModelOptions(str(folder), dtype=dtype, lora=lora, **options), 1.0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.trained_parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return policy
