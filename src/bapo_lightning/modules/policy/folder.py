"""Finds a model by its path and reports early why it cannot be loaded. Needs no torch."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from bapo_lightning.system.errors import DataError
from bapo_lightning.system.hub import is_hub_name, stay_offline_without_hub
from bapo_lightning.system.pretrained import read_model_config, refuse_few_bits, refuse_quantized
from bapo_lightning.system.run_folder.config_keys import value_of

PACKAGE_PREFIX = "package://"
WEIGHTS = ("*.safetensors", "pytorch_model*.bin")  # of models on the hub
# Parts of a model's folder other than its weights, and their files.
PARTS = {
    "configuration": ("config.json", "generation_config.json"),
    "tokenizer": ("token*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges*", "*.model"),
    "chat template": ("chat_template.*", "additional_chat_templates/*"),
}
SLICES, SLICE_BYTES = 64, 1024  # of a tensor: enough to detect other weights, and cheap for any size
DIGITS = 16  # of a digest
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


def model_path(path: str) -> str:
    """Returns the folder or hub name that transformers understands. `package://name/sub/folder` is a folder
    inside an installed package. Raises DataError if the package is not installed.
    """
    if not path.startswith(PACKAGE_PREFIX):
        if not Path(path).exists():
            stay_offline_without_hub()
        return path
    package, _, inside = path.removeprefix(PACKAGE_PREFIX).partition("/")
    try:
        return str(files(package).joinpath(inside))
    except (ImportError, TypeError, ValueError):  # missing, not a package, or not a package's name
        raise DataError(
            f"{path}: no package {package or 'without a name'} is installed here; write a model folder, "
            f"a hub name (owner/name), or one like {PACKAGE_PREFIX}bapo_lightning/tiny_worlds/locks/model"
        ) from None


def model_config(path: str) -> dict[str, Any]:
    """Returns a folder's config.json. DataError: other JSON or quantized weights; OSError: it is missing."""
    content = Path(model_path(path), "config.json").read_text(encoding="utf-8", errors="replace")
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError) as error:
        parsed = error
    if not isinstance(parsed, dict):
        what = f"({parsed})" if isinstance(parsed, Exception) else f"but a {type(parsed).__name__}"
        raise DataError(f"model.path={path} is corrupt: config.json is not a JSON object {what}; save again")
    refuse_quantized(parsed, f"model.path={path}")
    return parsed


def generation_config(path: str) -> Any:
    """Returns transformers' generation configuration of a model: its own, or one made from config.json."""
    from transformers import GenerationConfig

    try:
        return GenerationConfig.from_pretrained(path)
    except OSError:  # the model has none
        return GenerationConfig.from_model_config(read_model_config(path))


def hub_problem(path: str, key: str = "model.path") -> str | None:
    """Returns why a model, the value of the option `key`, is available neither in the cache nor on the hub;
    None if it is, and for a folder. The hub is queried only for models that are not in the cache.
    """
    if Path(path).exists() or not is_hub_name(path) or _is_cached(path):
        return None
    if (reason := stay_offline_without_hub()) is None:
        return None
    from huggingface_hub import constants

    return (
        f"{key}={path} is neither a folder here nor in the cache ({constants.HF_HUB_CACHE}), and the hub "
        f"({constants.ENDPOINT}) {reason}; write {key}=FOLDER, or fetch it on a machine with a network: "
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
    """Yields faults of a local model folder, which the command `made_by` may make; none of a hub name."""
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
            f"model.path={path} is not a model folder: config.json is missing; save a model there with "
            "save_pretrained"
        )
        return
    try:
        model_config(path)
        if not any(map(safetensors_problem, weights)):
            for file in weights:
                refuse_few_bits(file, f"model.path={path}")
    except DataError as error:
        yield str(error)
    if not weights and (folder / "adapter_config.json").is_file():
        yield f"model.path={path} is only an adapter; merge it into its model and save that there"
    elif not weights:
        yield f"model.path={path} has no *.safetensors weights; save the model there with save_pretrained"
    for file in weights:
        problem = safetensors_problem(file)
        if problem:
            yield f"model.path={path} is corrupt: {file.name} {problem}; copy or save the model again"
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        yield f"model.path={path} has no tokenizer; save it there with tokenizer.save_pretrained"


def safetensors_problem(file: Path) -> str | None:
    """Compares a safetensors file's length with the length in its header, without reading the weights."""
    if not file.is_file():
        return "is not a file"
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


def models_behind(plain: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Returns digests of the models that a resolved configuration names: the policy, and models of its
    algorithm, such as a critic. They are dictionaries by part, under the dotted key of each model's path.
    """
    paths = {"model.path": plain.get("model", {}).get("path")}
    paths |= dict(_folders(plain.get("algorithm"), "algorithm"))
    return {key: digests for key, path in paths.items() if path and (digests := model_digests(path))}


def _folders(value: Any, key: str) -> Iterator[tuple[str, str]]:
    for name, inner in value.items() if isinstance(value, Mapping) else ():
        yield from _folders(inner, f"{key}.{name}")
    if isinstance(value, str):
        folder = model_path(value) if value.startswith(PACKAGE_PREFIX) else value
        # Unlike pathlib, this raises no error for a text that cannot be a path, such as a long prompt.
        if os.path.isfile(os.path.join(folder, "config.json")):
            yield key, value


def model_digests(path: str) -> dict[str, str]:
    """Returns a digest of each part of a model: configuration, tokenizer, chat template and weights. The
    digest of weights covers names, sizes and headers of files and slices of each tensor; weights of the hub
    have their revision instead. Empty if the path is not a model on this machine.
    """
    folder, revision = _folder_of(path)
    if folder is None:
        return {}
    files_of = {
        part: sorted(file for name in names for file in folder.glob(name) if file.is_file())
        for part, names in PARTS.items()
    }
    digests = {
        part: sha256(b"".join(file.name.encode() + file.read_bytes() for file in files)).hexdigest()[:DIGITS]
        for part, files in files_of.items()
    }
    return {**digests, "weights": revision or _weights_digest(sorted(folder.glob("*.safetensors")))}


def _folder_of(path: str) -> tuple[Path | None, str]:
    """Returns the folder of a model, and its revision if it lies in the hub's cache."""
    folder = Path(model_path(path))
    if folder.is_dir() or not is_hub_name(path):
        return (folder if (folder / "config.json").is_file() else None), ""
    from huggingface_hub import try_to_load_from_cache

    file = try_to_load_from_cache(path, "config.json")
    return (Path(file).parent, Path(file).parent.name) if isinstance(file, str) else (None, "")


def _weights_digest(files: Iterable[Path]) -> str:
    digest = sha256()
    for file in files:
        if safetensors_problem(file):  # reported elsewhere
            continue
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            header = stream.read(*struct.unpack("<Q", stream.read(8)))
            digest.update(f"{file.name} {size}".encode() + header)
            for name, entry in json.loads(header).items():
                if name != "__metadata__":
                    for begin, length in _slices(*entry["data_offsets"]):
                        stream.seek(8 + len(header) + begin)
                        digest.update(stream.read(length))
    return digest.hexdigest()[:DIGITS]


def _slices(begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields (begin, length) of the bytes of a tensor that count: all if it is small, else even slices."""
    room = end - begin - SLICE_BYTES
    if room < SLICES * SLICE_BYTES:
        yield begin, end - begin
        return
    for number in range(SLICES):
        yield begin + room * number // (SLICES - 1), SLICE_BYTES


def changed_models(
    before: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]
) -> list[tuple[str, str]]:
    """Returns (key, part) of all differences between two results of `models_behind` that both have."""
    return [
        (key, part)
        for key, parts in before.items()
        for part, digest in parts.items()
        if now.get(key, {}).get(part, digest) != digest
    ]


def refuse_other_models(
    before: Mapping[str, Mapping[str, str]],
    now: Mapping[str, Mapping[str, str]],
    plain: Mapping[str, Any],
    where: str = "",
) -> None:
    """Raises DataError if a model of a run with the configuration `plain` has changed, except for the weights
    that a checkpoint has: the policy's, without adapters.
    """
    for key, part in changed_models(before, now):
        if (key, part) != ("model.path", "weights") or value_of(plain, "model").get("lora") is not None:
            raise DataError(f"{other_model(key, part, value_of(plain, key))}{where}; restore the files")


def other_model(key: str, part: str, path: Any) -> str:
    """Returns a message that a part of the model at `path`, the value of `key`, has changed."""
    are = "are not those" if part == "weights" else "is not the one"
    return f"{key}: the {part} of {path} {are} that the run began with"
