"""Finds a model and tells early when it cannot be loaded."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

PACKAGE_PREFIX = "package://"


def model_path(path: str) -> str:
    """Folder or hub name that transformers understands; `package://name/sub/folder` points inside an
    installed package.
    """
    if not path.startswith(PACKAGE_PREFIX):
        return path
    package, _, inside = path.removeprefix(PACKAGE_PREFIX).partition("/")
    return str(files(package).joinpath(inside))


def model_folder_problems(path: str, made_by: str | None) -> Iterator[str]:
    """What is wrong with a local model folder. A hub name (no folder, at most one slash) is left to
    transformers.

    Args:
        path: `model.path`.
        made_by: the command that makes the folder, where there is one.
    """
    folder = Path(model_path(path))
    if not folder.exists():
        if made_by is not None:
            yield f"model.path={path} does not exist yet; make it: {made_by}"
        elif path.startswith((PACKAGE_PREFIX, ".", "/", "~")) or path.count("/") != 1:
            yield (
                f"model.path={path} does not exist; write a Hugging Face model folder, a hub name "
                "(owner/name), or use model=tiny_world"
            )
        return
    if not (folder / "config.json").is_file():
        yield (
            f"model.path={path} is no model folder: config.json is missing; save a model there with "
            "save_pretrained"
        )
        return
    try:
        json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        yield f"model.path={path} is corrupt: config.json is not JSON ({error}); save the model again"
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        yield f"model.path={path} has no *.safetensors weights; save the model there with save_pretrained"
    for file in weights:
        problem = safetensors_problem(file)
        if problem:
            yield f"model.path={path} is corrupt: {file.name} {problem}; copy or save the model again"
    if not any(
        (folder / name).is_file()
        for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
    ):
        yield f"model.path={path} has no tokenizer; save it there with tokenizer.save_pretrained"


def safetensors_problem(file: Path) -> str | None:
    """Compare a safetensors file's length with what its header promises, without reading the weights."""
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
        except ValueError:
            return "has a header that is not JSON"
    tensors = [entry for name, entry in header.items() if name != "__metadata__"]
    promised = 8 + header_size + max((entry["data_offsets"][1] for entry in tensors), default=0)
    return f"is {size} bytes long, its header promises {promised}" if promised != size else None
