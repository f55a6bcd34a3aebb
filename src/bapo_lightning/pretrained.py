"""Reads what transformers saved of a model, with one sentence for what it cannot read. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bapo_lightning.errors import BapoLightningError, DataError, first_line


def read_pretrained(kind: Any, path: str, key: str = "model.path") -> Any:
    """Returns what a class of transformers, such as AutoTokenizer, makes of the model at `path`, the value of
    the option `key`. Code that a model brings is never run. Raises DataError for files that it cannot read.
    """
    try:
        return kind.from_pretrained(path, trust_remote_code=False)
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # tokenizers panic with a BaseException; others have types of their own
        reason = first_line(error)
        if "trust_remote_code" in str(error):
            reason = "it needs code of its own (auto_map), which is never run"
        is_here = Path(path).exists()
        remedy = "save or copy the model again" if is_here else f"fetch it first: hf download {path}"
        nowhere = "" if is_here else " is no folder here, and"
        raise DataError(
            f"{key}={path}{nowhere} could not be loaded ({reason}); write another folder, or {remedy}"
        ) from None


@contextmanager
def building(path: str) -> Iterator[Any]:
    """Gives the configuration of the model at `path` to what builds a model of it. Raises DataError that
    names config.json where none can be built, such as for sizes below 0 or unlike those of the weights.
    """
    from transformers import AutoConfig

    config = read_pretrained(AutoConfig, path)
    where = f"{path}: no model can be built of its config.json and weights"
    remedy = "correct its sizes, or save the model again"
    layers, names = getattr(config.get_text_config(), "num_hidden_layers", None), weight_names(path)
    if names and (layers or 0) > len(names):  # would be built for hours
        raise DataError(f"{where} ({layers} layers, {len(names)} weights); {remedy}")
    try:
        yield config
    except (BapoLightningError, ImportError, MemoryError):
        raise
    except Exception as error:
        reason = first_line(error)
        raise DataError(f"{where} ({reason.rstrip('.')}); {remedy}") from None


def weight_names(path: str) -> list[str]:
    """Returns the names of a model's weights in its safetensors files, none where it has no such file."""
    from safetensors import safe_open
    from transformers.utils.hub import cached_file

    quiet: Any = {f"_raise_exceptions_for_{what}": False for what in ("missing_entries", "connection_errors")}
    if index := cached_file(path, "model.safetensors.index.json", **quiet):
        return list(json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"])
    if (file := cached_file(path, "model.safetensors", **quiet)) is None:
        return []
    with safe_open(file, "pt") as weights:
        return list(weights.keys())
