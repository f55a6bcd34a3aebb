"""Writes a policy as a Hugging Face model folder, which transformers and vLLM load.

The folder appears whole or not at all.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from bapo_lightning.errors import DataError
from bapo_lightning.modules.export.safetensors_shards import write_shards
from bapo_lightning.run_folder.checkpoint import sync

GIGABYTE = 10**9
MAX_SHARD_BYTES = 5 * GIGABYTE
CARD = "README.md"


def check_target(target: Path, overwrite: bool) -> None:
    """Raises DataError unless a model can be written to `target`."""
    if not target.exists():
        return
    if not overwrite:
        raise DataError(
            f"{target} exists already; name another folder, or allow it to be replaced (--overwrite)"
        )
    if not (target / "config.json").is_file():
        raise DataError(
            f"{target} is no model folder (it has no config.json), so it is not replaced; name another folder"
        )


def write_model_folder(
    target: Path,
    model_path: str,
    weights: Iterable[tuple[str, Tensor]],
    card: str,
    dtype: torch.dtype,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    overwrite: bool = False,
) -> int:
    """Writes configuration, tokenizer, weights and card to a folder beside `target`, then renames it.

    Args:
        target: folder to make.
        model_path: the model that was trained; its configuration, generation configuration and tokenizer
            are copied.
        weights: the weights under their Hugging Face names, read until a file is full.
        card: text of README.md.
        dtype: precision of the written weights.
        max_shard_bytes: size limit of one file of weights, and the memory that writing takes.
        overwrite: replace an existing model, which stays until the new one is complete.

    Returns:
        Number of weights.

    Raises:
        DataError: `target` cannot be made.
    """
    check_target(target, overwrite)
    partial, removed = (target.with_name(f".{target.name}.{state}") for state in ("partial", "removed"))
    for leftover in (partial, removed):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise DataError(f"{target} cannot be made ({error.strerror}); name another folder") from None
    _write_description(partial, model_path, dtype)
    (partial / CARD).write_text(card, encoding="utf-8")
    num_weights = write_shards(partial, weights, dtype, max_shard_bytes)
    for path in [*partial.iterdir(), partial]:
        sync(path)
    if target.exists():
        target.rename(removed)
    partial.rename(target)
    sync(target.parent)
    shutil.rmtree(removed, ignore_errors=True)
    return num_weights


def _write_description(folder: Path, model_path: str, dtype: torch.dtype) -> None:
    config = AutoConfig.from_pretrained(model_path)
    config.dtype = dtype
    config.save_pretrained(folder)
    try:
        generation = GenerationConfig.from_pretrained(model_path)
    except OSError:  # the model has none
        generation = GenerationConfig.from_model_config(config)
    # Not `save_pretrained`: it refuses values that some published models have and that load well.
    (folder / "generation_config.json").write_text(generation.to_json_string() + "\n", encoding="utf-8")
    AutoTokenizer.from_pretrained(model_path).save_pretrained(folder)
