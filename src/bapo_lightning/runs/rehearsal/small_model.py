"""A random model of an experiment's family, with a tokenizer made of a rehearsal's texts: no hub is asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

# Sizes of config.json that are made small; any other key stays as the family has it. Heads of 32 are the
# smallest that vLLM's CPU kernels take, and four of them can be split over two ranks.
SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "intermediate_size": 256,
    "moe_intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
END, PAD = "<|end|>", "<|pad|>"
# Whole texts as tokens, so that a random model answers in the form that verdicts ask for.
ANSWERS = ("\\boxed{1}", "\\boxed{2}", "#### 1", "#### 2")
NUM_TOKENS = 160  # of the tokenizer: few, so that a response of a few tokens often has an answer
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}"
    f"{END}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_small_model(architecture: Mapping[str, Any], texts: Iterable[str], folder: Path) -> None:
    """Writes a model folder.

    Args:
        architecture: config.json of the family.
        texts: that the tokenizer has to spell.
        folder: to make.
    """
    tokenizer = small_tokenizer(texts)
    tokenizer.save_pretrained(folder)
    config = small_config(architecture, len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)


def small_config(architecture: Mapping[str, Any], vocab_size: int, eos: int | None, pad: int | None) -> Any:
    """Returns transformers' configuration of the family with small sizes."""
    shrunk = {key: value for key, value in architecture.items() if key not in ("architectures", "auto_map")}
    shrunk |= {key: size for key, size in SIZES.items() if key in architecture}
    heads = architecture["num_attention_heads"]
    if architecture.get("num_key_value_heads", heads) == heads and "num_key_value_heads" in architecture:
        shrunk["num_key_value_heads"] = shrunk["num_attention_heads"]
    if "layer_types" in shrunk:
        shrunk["layer_types"] = shrunk["layer_types"][: SIZES["num_hidden_layers"]]
    shrunk |= {"vocab_size": vocab_size, "eos_token_id": eos, "pad_token_id": pad, "bos_token_id": None}
    return AutoConfig.for_model(**shrunk)


def small_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Returns a byte-pair tokenizer of the bytes that occur in `texts`, with a chat template."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(vocab_size=NUM_TOKENS, special_tokens=[PAD, END], show_progress=False)
    tokenizer.train_from_iterator([*texts, *ANSWERS, TEMPLATE, "0123456789"], trainer)
    tokenizer.add_tokens([AddedToken(answer, normalized=False) for answer in ANSWERS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, chat_template=TEMPLATE
    )
