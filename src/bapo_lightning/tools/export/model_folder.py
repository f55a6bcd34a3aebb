"""Writes a policy as a Hugging Face model folder, which transformers and vLLM load.

The folder appears whole or not at all.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoTokenizer
from transformers.utils.hub import cached_file

from bapo_lightning.modules.policy.folder import generation_config
from bapo_lightning.system.errors import DataError
from bapo_lightning.system.phases import advance
from bapo_lightning.system.pretrained import read_model_config
from bapo_lightning.system.run_folder.checkpoint import sync

GIGABYTE = 10**9
MAX_SHARD_BYTES = 5 * GIGABYTE
CARD = "README.md"
INDEX = "model.safetensors.index.json"
TEMPLATES = "additional_chat_templates"
TOKENIZER_NAMES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template.jinja", "chat_template.json", "tokenizer.model", "vocab.json", "merges.txt"),
    *("vocab.txt", "spiece.model", "sentencepiece.bpe.model", "tekken.json", "tiktoken.model"),
)
KEPT = 0.99  # of an update; less is reported as lost


def rounding_problem(update_kept: float | None, dtype: str) -> str | None:
    """Returns a warning if rounding merged weights to `dtype` loses their update (`Policy.update_kept`)."""
    if update_kept is None or update_kept >= KEPT:
        return None
    return (
        f"merged weights in {dtype} hold {max(update_kept, 0.0):.0%} of what the adapters have changed, the "
        "rest is rounded away: in float32 they hold all of it"
    )


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
            f"{target} is not a model folder (no config.json), so it is not replaced; name another folder"
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
    """Writes configuration, tokenizer, weights and card to a folder next to `target`, then renames it.

    Args:
        target: folder to make.
        model_path: the model that was trained, whose configurations and tokenizer are copied.
        weights: the weights under their Hugging Face names and in the precision to write, read until
            a file is full; each is counted in the current phase.
        card: text of README.md.
        dtype: precision of the model.
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
    num_weights = write_shards(partial, weights, max_shard_bytes)
    for path in [*partial.iterdir(), partial]:
        sync(path)
    if target.exists():
        target.rename(removed)
    partial.rename(target)
    sync(target.parent)
    shutil.rmtree(removed, ignore_errors=True)
    return num_weights


def _write_description(folder: Path, model_path: str, dtype: torch.dtype) -> None:
    config = read_model_config(model_path)
    config.dtype = dtype
    config.save_pretrained(folder)
    # Not `save_pretrained`: it refuses values that some published models have and that load well.
    generation = generation_config(model_path).to_json_string()
    (folder / "generation_config.json").write_text(generation + "\n", encoding="utf-8")
    if not _copy_tokenizer(model_path, folder):
        AutoTokenizer.from_pretrained(model_path, trust_remote_code=False).save_pretrained(folder)


def _copy_tokenizer(model_path: str, folder: Path) -> bool:
    """Copies the tokenizer's files unchanged, except for names of code, since other versions of transformers
    write them in ways that older ones do not read. Returns False if there are none.
    """
    quiet: Any = {f"_raise_exceptions_for_{what}": False for what in ("missing_entries", "connection_errors")}
    paths = [cached_file(model_path, name, **quiet) for name in TOKENIZER_NAMES]
    files = [path for path in paths if path is not None]
    for file in map(Path, files):
        content = file.read_bytes()
        if file.name == "tokenizer_config.json" and "auto_map" in (settings := json.loads(content)):
            del settings["auto_map"]  # names code that is not copied
            content = json.dumps(settings, indent=2, ensure_ascii=False).encode()
        (folder / file.name).write_bytes(content)
    if (several := Path(model_path, TEMPLATES)).is_dir():
        shutil.copytree(several, folder / TEMPLATES)
    return bool(files)


def write_shards(folder: Path, weights: Iterable[tuple[str, Tensor]], max_bytes: int) -> int:
    """Writes `weights` to files of at most `max_bytes` (a larger weight gets its own file) and returns
    their number. Files are named as transformers and vLLM expect: `model.safetensors`, or
    `model-00001-of-00003.safetensors` and so on with an index.
    """
    names_by_file: list[list[str]] = []
    total_bytes = 0
    for shard in _shards(weights, max_bytes):
        names_by_file.append(list(shard))
        total_bytes += sum(weight.nbytes for weight in shard.values())
        file = folder / f"{len(names_by_file)}.partial"
        file.touch()  # with the umask's mode, like the others; safetensors lets only the owner read
        mode = file.stat().st_mode
        save_file(shard, file, {"format": "pt"})
        file.chmod(mode)
    num_files = len(names_by_file)
    file_of: dict[str, str] = {}
    for number, names in enumerate(names_by_file, 1):
        numbers = "" if num_files == 1 else f"-{number:05d}-of-{num_files:05d}"
        file = (folder / f"{number}.partial").rename(folder / f"model{numbers}.safetensors")
        file_of |= dict.fromkeys(names, file.name)
    if num_files > 1:
        index = {"metadata": {"total_size": total_bytes}, "weight_map": file_of}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return len(file_of)


def _shards(weights: Iterable[tuple[str, Tensor]], max_bytes: int) -> Iterator[dict[str, Tensor]]:
    # One dictionary, refilled for each file, so that only one file's weights are alive.
    shard: dict[str, Tensor] = {}
    num_bytes = 0
    for name, weight in weights:
        weight = weight.detach().cpu().contiguous()
        if shard and num_bytes + weight.nbytes > max_bytes:
            yield shard
            shard.clear()
            num_bytes = 0
        shard[name] = weight
        advance()
        num_bytes += weight.nbytes
    yield shard
