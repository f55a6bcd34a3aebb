"""Converts a Llama in a GGUF file of llama.cpp to a Hugging Face model folder with float32 weights.

`from_pretrained(gguf_file=...)` is not used: it needs accelerate, and the model it returns counts as
quantised and cannot be saved.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from safetensors import safe_open
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from bapo_lightning.errors import DataError

TIED_WEIGHT = "lm_head.weight"
QUESTION = "What is 2+3?"


def convert(gguf_file: Path, folder: Path) -> None:
    """Writes weights, configuration, tokenizer and chat template of `gguf_file` to `folder`."""
    model, tokenizer = load_model(gguf_file), load_tokenizer(gguf_file)
    tokenizer.model_max_length = model.config.max_position_embeddings
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def load_model(gguf_file: Path) -> LlamaForCausalLM:
    """Returns the dequantised model; transformers undoes llama.cpp's permutation of query and key weights.

    Raises:
        DataError: the file lacks a weight of its architecture, or has an unknown one.
    """
    config = LlamaConfig.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
    model = LlamaForCausalLM(config)
    weights = load_gguf_checkpoint(gguf_file, return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected or set(missing) - ({TIED_WEIGHT} if config.tie_word_embeddings else set()):
        raise DataError(
            f"{gguf_file.name} does not fit a Llama: missing {missing}, not understood {unexpected}"
        )
    return model


def load_tokenizer(gguf_file: Path) -> PreTrainedTokenizerFast:
    """Returns the tokenizer, which splits text as SmolLM2's own does.

    GGUF names the split before the merges (`pre = smollm`), but transformers ignores it. Without `Digits`, a
    number takes the last of several spaces before it, and such a text gets other tokens than in training.
    """
    tokenizer = PreTrainedTokenizerFast.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
    )
    return tokenizer


def check(folder: Path, num_parameters: int, end_token: str) -> str:
    """Loads the written model and asks it a question. Returns the answer, for a reader to judge.

    Raises:
        DataError: the folder holds another model than expected.
    """
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    model = LlamaForCausalLM.from_pretrained(folder)
    with safe_open(folder / "model.safetensors", framework="pt") as weights:
        if TIED_WEIGHT in weights.keys():  # noqa: SIM118 - not a dictionary
            raise DataError(f"{TIED_WEIGHT} was written although it is tied to the embedding")
    if model.num_parameters() != num_parameters:
        raise DataError(f"the model has {model.num_parameters()} parameters instead of {num_parameters}")
    if tokenizer.eos_token != end_token or model.generation_config.eos_token_id != tokenizer.eos_token_id:
        raise DataError(f"answers end with {tokenizer.eos_token!r} instead of {end_token!r}")
    if tokenizer.chat_template is None:
        raise DataError("the file has no chat template")
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], add_generation_prompt=True, tokenize=False
    )
    prompt = tokenizer(str(text), return_tensors="pt").input_ids
    tokens = cast(Any, model).generate(prompt, max_new_tokens=24, do_sample=False)
    return str(tokenizer.decode(tokens[0, prompt.shape[1] :], skip_special_tokens=True))
