"""Sizes of a decoder-only transformer, read from its Hugging Face config.json, and derived numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bapo_lightning.system.errors import DataError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
QWEN3_HEAD_SIZE = 128  # if its config.json does not say; the other families divide
NEEDED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
OPTIONAL = ("num_key_value_heads", "head_dim", "max_position_embeddings")


@dataclass(frozen=True)
class ModelShape:
    """Sizes of Llama's block (RMSNorm, rotary attention, gated MLP) and of its variants."""

    family: str
    num_layers: int
    hidden_size: int  # D
    ffn_size: int  # F
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int  # V
    max_positions: int | None
    tied: bool  # the output head is the embedding
    qkv_bias: bool = False
    other_bias: bool = False  # of the attention's output
    mlp_bias: bool = False
    head_norms: bool = False  # an RMSNorm over each query and key head

    @property
    def query_size(self) -> int:
        """Width of all query heads and of the attention's result."""
        return self.num_heads * self.head_size

    @property
    def kv_size(self) -> int:
        """Width of all key heads, and of all value heads."""
        return self.num_kv_heads * self.head_size

    @property
    def linear_shapes(self) -> dict[str, tuple[int, int]]:
        """(inputs, outputs) of a block's matrices by transformers' names."""
        width, ffn = self.hidden_size, self.ffn_size
        return {
            "q_proj": (width, self.query_size),
            "k_proj": (width, self.kv_size),
            "v_proj": (width, self.kv_size),
            "o_proj": (self.query_size, width),
            "gate_proj": (width, ffn),
            "up_proj": (width, ffn),
            "down_proj": (ffn, width),
        }

    @property
    def layer_matmul_parameters(self) -> int:
        """Number of a block's weights that multiply every token."""
        return sum(inputs * outputs for inputs, outputs in self.linear_shapes.values())

    @property
    def layer_parameters(self) -> int:
        """Number of all weights of a block."""
        biases = self.qkv_bias * (self.query_size + 2 * self.kv_size) + self.other_bias * self.hidden_size
        biases += self.mlp_bias * (2 * self.ffn_size + self.hidden_size)
        norms = 2 * self.hidden_size + self.head_norms * 2 * self.head_size
        return self.layer_matmul_parameters + biases + norms

    @property
    def head_parameters(self) -> int:
        """Number of the output head's weights, V D."""
        return self.vocab_size * self.hidden_size

    @property
    def root_parameters(self) -> int:
        """Number of weights outside the blocks: embedding, head unless tied, last norm."""
        return self.head_parameters * (1 if self.tied else 2) + self.hidden_size

    @property
    def num_parameters(self) -> int:
        """Number of all weights."""
        return self.num_layers * self.layer_parameters + self.root_parameters

    @property
    def largest_parameter(self) -> int:
        """Number of weights of the largest matrix."""
        return max(self.head_parameters, self.hidden_size * self.ffn_size)

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Returns the size of a token in a key-value cache: a key and a value in every block."""
        return 2 * self.num_layers * self.kv_size * element_bytes


def model_shape(config: Mapping[str, Any]) -> ModelShape:
    """Returns the shape of the model in a Hugging Face config.json. Raises DataError if it is not known."""
    family = config.get("model_type")
    if family not in FAMILIES:
        raise DataError(
            f"model_type={family} cannot be planned for: its sizes are known for {', '.join(FAMILIES)} only"
        )
    sizes = [*NEEDED, *(key for key in OPTIONAL if config.get(key) is not None)]
    missing = [key for key in sizes if type(size := config.get(key)) is not int or size < 1]
    if missing:
        raise DataError(f"the model's config.json has no {', '.join(missing)}; write them as whole numbers")
    heads = config["num_attention_heads"]
    attention_bias = bool(config.get("attention_bias", False))
    return ModelShape(
        family=family,
        num_layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        ffn_size=config["intermediate_size"],
        num_heads=heads,
        num_kv_heads=config.get("num_key_value_heads") or heads,
        head_size=config.get("head_dim")
        or (QWEN3_HEAD_SIZE if family == "qwen3" else config["hidden_size"] // heads),
        vocab_size=config["vocab_size"],
        max_positions=config.get("max_position_embeddings"),
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=family == "qwen2" or attention_bias,
        other_bias=attention_bias and family in ("llama", "qwen3"),
        mlp_bias=bool(config.get("mlp_bias", False)),
        head_norms=family == "qwen3",
    )
