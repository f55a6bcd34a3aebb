"""Finds a model by its path and reports early why it cannot be loaded. Needs no torch."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

from bapo_lightning.errors import DataError
from bapo_lightning.hub import stay_offline_without_hub

PACKAGE_PREFIX = "package://"
WEIGHTS = ("*.safetensors", "pytorch_model*.bin")  # of models on the hub
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


def model_path(path: str) -> str:
    """Returns the folder or hub name that transformers understands. `package://name/sub/folder` is a folder
    inside an installed package. Raises DataError where that is not installed.
    """
    if not path.startswith(PACKAGE_PREFIX):
        if not Path(path).exists():
            stay_offline_without_hub()
        return path
    package, _, inside = path.removeprefix(PACKAGE_PREFIX).partition("/")
    try:
        return str(files(package).joinpath(inside))
    except (ImportError, TypeError, ValueError):  # not there, no package, or no name of one
        raise DataError(
            f"{path}: no package {package or 'without a name'} is installed here; write a model folder, "
            f"a hub name (owner/name), or one like {PACKAGE_PREFIX}bapo_lightning/tiny_worlds/locks/model"
        ) from None


def is_hub_name(path: str) -> bool:
    """Whether `path` reads as owner/name on the Hugging Face hub, and no folder here is called owner."""
    return path.count("/") == 1 and not path.startswith((".", "/", "~")) and not Path(path).parent.exists()


def model_config(path: str) -> dict[str, Any]:
    """Returns the config.json in a model's folder. Raises DataError when it is no JSON object, OSError when
    there is none.
    """
    content = Path(model_path(path), "config.json").read_text(encoding="utf-8", errors="replace")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        found = error
    if not isinstance(found, dict):
        what = f"({found})" if isinstance(found, Exception) else f"but a {type(found).__name__}"
        raise DataError(f"model.path={path} is corrupt: config.json is no JSON object {what}; save it again")
    return found


def generation_config(path: str) -> Any:
    """Returns transformers' generation configuration of a model: its own, or what its config.json says."""
    from transformers import AutoConfig, GenerationConfig

    try:
        return GenerationConfig.from_pretrained(path)
    except OSError:  # the model has none
        return GenerationConfig.from_model_config(AutoConfig.from_pretrained(path, trust_remote_code=False))


def hub_problem(path: str, key: str = "model.path") -> str | None:
    """Returns why a model, the value of the option `key`, can be had neither from the cache nor from the hub;
    None if it can, and for a folder. The hub is asked only for what is not in the cache.
    """
    if Path(path).exists() or not is_hub_name(path) or _is_cached(path):
        return None
    if (reason := stay_offline_without_hub()) is None:
        return None
    from huggingface_hub import constants

    return (
        f"{key}={path} is neither a folder here nor in the cache ({constants.HF_HUB_CACHE}), and the hub "
        f"({constants.ENDPOINT}) {reason}; write {key}=FOLDER, or fetch it where there is a network: "
        f"hf download {path}"
    )


def _is_cached(path: str) -> bool:
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(path, local_files_only=True))
    except (OSError, ValueError):
        return False
    return (folder / "config.json").is_file() and any(any(folder.glob(pattern)) for pattern in WEIGHTS)


def model_folder_problems(path: str, made_by: str | None) -> Iterator[str]:
    """Yields what is wrong with a local model folder, which the command `made_by` may make. A hub name is
    left to transformers.
    """
    folder = Path(model_path(path))
    if not folder.exists():
        if made_by is not None:
            yield f"model.path={path} does not exist yet; make it: {made_by}"
        elif not is_hub_name(path):
            yield (
                f"model.path={path} does not exist; write a Hugging Face model folder, a hub name "
                "(owner/name), or use model=additions"
            )
        return
    config, weights = folder / "config.json", sorted(folder.glob("*.safetensors"))
    if not config.is_file():
        yield (
            f"model.path={path} is no model folder: config.json is missing; save a model there with "
            "save_pretrained"
        )
        return
    try:
        model_config(path)
    except DataError as error:
        yield str(error)
    if not weights and (folder / "adapter_config.json").is_file():
        yield f"model.path={path} is an adapter alone; merge it into its model and save that there"
    elif not weights:
        yield f"model.path={path} has no *.safetensors weights; save the model there with save_pretrained"
    for file in weights:
        problem = safetensors_problem(file)
        if problem:
            yield f"model.path={path} is corrupt: {file.name} {problem}; copy or save the model again"
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        yield f"model.path={path} has no tokenizer; save it there with tokenizer.save_pretrained"


def safetensors_problem(file: Path) -> str | None:
    """Compares a safetensors file's length with the one in its header, without reading the weights."""
    if not file.is_file():
        return "is no file"
    size = file.stat().st_size
    with file.open("rb") as stream:
        prefix = stream.read(8)
        if len(prefix) < 8:
            return f"is {size} bytes long, shorter than any header"
        (header_size,) = struct.unpack("<Q", prefix)
        if header_size > size - 8:
            return "has a header that is longer than the file"
        try:
            header = json.loads(stream.read(header_size))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
            promised = 8 + header_size + max(ends, default=0)
        except (ValueError, RecursionError):
            return "has a header that is not JSON"
        except (AttributeError, LookupError, TypeError):
            return "has a header that does not list its tensors"
    return f"is {size} bytes long, its header promises {promised}" if promised != size else None
