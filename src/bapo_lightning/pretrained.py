"""Reads what transformers saved of a model, with one sentence for what it cannot read. Needs no torch."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bapo_lightning.errors import BapoLightningError, DataError, first_line

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")  # of a layer, in a weight's name


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
        where, remedy = f"{key}={path}{nowhere} could not be loaded", f"write another folder, or {remedy}"
        raise _fault(where, reason, remedy) from None


@contextmanager
def building(path: str) -> Iterator[Any]:
    """Gives the configuration of the model at `path` to what builds a model of it. Raises DataError that
    names config.json where none can be built, such as for sizes below 0 or unlike those of the weights.
    """
    from transformers import AutoConfig

    config = read_pretrained(AutoConfig, path)
    layers, names = getattr(config.get_text_config(), "num_hidden_layers", None), weight_names(path)
    if names and (layers or 0) > len(names):  # would be built for hours
        raise _misfit(path, f"{layers} layers, {len(names)} weights")
    try:
        yield config
    except (BapoLightningError, ImportError, MemoryError):
        raise
    except Exception as error:
        raise _misfit(path, first_line(error)) from None


def load_whole(kind: Any, path: str, has_head: bool = True, **choices: Any) -> Any:
    """Returns the model that a class of transformers, such as AutoModelForCausalLM, makes of the files at
    `path`. Without `has_head` they are those of another class, and the model's own head is new. A warning
    names weights that the model has no place for.

    Raises:
        DataError: files lack weights or have them in other shapes, so that transformers would draw them at
            random; or they have layers or a head that config.json does not have.
    """
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # its table of what is told below
    try:
        model, told = kind.from_pretrained(
            path, trust_remote_code=False, output_loading_info=True, ignore_mismatched_sizes=True, **choices
        )
    finally:
        logging.set_verbosity(verbosity)
    inside = "" if has_head else f"{model.base_model_prefix}."
    if missing := [name for name in told["missing_keys"] if name.startswith(inside)]:
        raise _misfit(path, f"the files lack {_some(missing)}")
    if unlike := [f"{name} {[*found]}, not {[*own]}" for name, found, own in told["mismatched_keys"]]:
        raise _misfit(path, f"the files have {_some(unlike)}")
    tied = model.get_expanded_tied_weights_keys(all_submodels=True).keys()
    # Where files have two weights that config.json ties, transformers leaves them apart on this rank alone.
    if apart := [*tied - model.all_tied_weights_keys.keys()]:
        raise _misfit(path, f"config.json ties {_some(apart)}, the files do not")
    if extra := [name for name in told["unexpected_keys"] if name.startswith(inside)]:
        known = {_NUMBER.sub("", name) for name in model.state_dict()}
        deeper = [name for name in extra if _NUMBER.sub("", name) in known]
        # Layers that predict further tokens come after those of the model, which leaves them out.
        spare = getattr(model.config.get_text_config(), "num_nextn_predict_layers", None) or 0
        if len({number for name in deeper for number in _NUMBER.findall(name)[:1]}) > spare:
            raise _misfit(path, f"config.json has no layers for {_some(deeper)}")
        print(f"warning: {path}: the model has no place for {_some(extra)}", file=sys.stderr, flush=True)
    return model


def _misfit(path: str, reason: str) -> DataError:
    where = f"{path}: no model can be built of its config.json and weights"
    return _fault(where, reason, "correct config.json, or save the model again")


def _fault(where: str, reason: str, remedy: str) -> DataError:
    return DataError(f"{where} ({reason.rstrip('.')}); {remedy}")


def _some(weights: list[str]) -> str:
    more = f" and {len(weights) - 3} more" if len(weights) > 3 else ""
    return ", ".join(sorted(weights)[:3]) + more


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
