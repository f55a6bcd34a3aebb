"""Reads models that transformers saved, with a one-sentence error for what it cannot read. Needs no torch."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bapo_lightning.system.errors import BapoLightningError, DataError, first_line
from bapo_lightning.system.printable import say

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")  # of a layer, in a weight's name
# Keys of config.json that describe quantized weights, and names of the tensors that accompany such weights.
_QUANTIZATION = ("quantization_config", "compression_config", "quantization")
_SCALE = re.compile(
    r"weight_(scale|packed|zero_point|shape)|\b(qweight|qzeros|g_idx|absmax|quant_map|quant_state|SCB)\b|"
    r"_blocks$|_scales$|_scale_inv$"
)
_BITS = re.compile(r'"\w*bits?": (\d+)|load_in_(\d+)bit": true|(?:fp|int|nf|float)_?(\d+)', re.IGNORECASE)


def read_pretrained(kind: Any, path: str, key: str = "model.path") -> Any:
    """Returns what a class of transformers, such as AutoTokenizer, makes of the model at `path`, the value of
    the option `key`. Code in a model folder is never run, and a tokenizer's texts are its tokens
    exactly, without cleanup of spaces. Raises DataError for files that it cannot read.
    """
    try:
        loaded = kind.from_pretrained(path, trust_remote_code=False)
        if hasattr(loaded, "clean_up_tokenization_spaces"):
            loaded.clean_up_tokenization_spaces = False
        return loaded
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # tokenizers panic with a BaseException; others have their own types
        reason = first_line(error)
        if "trust_remote_code" in str(error):
            reason = "it needs its own code (auto_map), which is never run"
        is_here = Path(path).exists()
        remedy = "save or copy the model again" if is_here else f"fetch it first: hf download {path}"
        nowhere = "" if is_here else " is not a folder here, and"
        where, remedy = f"{key}={path}{nowhere} could not be loaded", f"write another folder, or {remedy}"
        raise _fault(where, reason, remedy) from None


def read_model_config(path: str, key: str = "model.path") -> Any:
    """Returns transformers' configuration of the model at `path`, the value of the option `key`. Raises
    DataError if it cannot be read, or if it describes quantized weights.
    """
    from transformers import AutoConfig

    config = read_pretrained(AutoConfig, path, key)
    vars(config).pop("auto_map", None)  # names code that is neither run nor copied
    refuse_quantized(config.to_dict(), f"{key}={path}")
    return config


def refuse_quantized(config: Mapping[str, Any], where: str) -> None:
    """Raises DataError if the content of a config.json, or a part of it such as text_config, describes
    quantized weights. `where` names the model in the message.
    """
    for key, value in config.items():
        if key in _QUANTIZATION and value is not None:
            text = json.dumps(value, default=str)
            bits = [int(next(filter(None, match.groups()))) for match in _BITS.finditer(text)]
            method = value.get("quant_method") if isinstance(value, Mapping) else None
            source = f"config.json has {key}" + (f" of method {method}" if method else "")
            raise _quantized(where, source, min(bits, default=None))
        if isinstance(value, Mapping):
            refuse_quantized(value, where)


def refuse_scales(names: Iterable[str], where: str) -> None:
    """Raises DataError if one of the weights' names is a tensor's that accompanies quantized weights."""
    if scales := [name for name in names if _SCALE.search(name)]:
        raise _quantized(where, f"its files have {_some(scales)}", None)


def refuse_few_bits(file: Path, where: str) -> None:
    """Raises DataError if a safetensors file has weights of 8 bits or fewer, also packed into integers."""
    from safetensors import safe_open

    with safe_open(file, "np") as weights:
        names = list(weights.keys())
        for name in names:
            dtype = weights.get_slice(name).get_dtype()
            if dtype.startswith(("F4", "F6", "F8")) or (dtype[0] in "IU" and name.endswith(".weight")):
                bits = int(dtype[1:].partition("_")[0])
                raise _quantized(where, f"{file.name} has {name} in {dtype}", bits)
    refuse_scales(names, where)


def _quantized(where: str, source: str, bits: int | None) -> DataError:
    weights = "quantized weights" if bits is None else f"weights of {bits} bits"
    reason = f"cannot be trained, scored or handed over ({source}); use the unquantized model"
    return DataError(f"{where}: {weights} {reason}")


@contextmanager
def building(path: str, tokens: int | None = None) -> Iterator[Any]:
    """Passes the configuration of the model at `path` to the code that builds a model from it for texts of
    at most `tokens` tokens, see `fix_rope`. Raises DataError that names config.json if no model can be built
    from it, for example because of sizes below 0 or unlike the sizes of the weights.
    """
    config = read_model_config(path)
    layers, names = getattr(config.get_text_config(), "num_hidden_layers", None), weight_names(path)
    if names and (layers or 0) > len(names):  # would take hours to build
        raise _misfit(path, f"{layers} layers, {len(names)} weights")
    refuse_scales(names, f"model.path={path}")
    try:
        fix_rope(config, path, tokens)
        yield config
    except (BapoLightningError, ImportError, MemoryError):
        raise
    except Exception as error:
        raise _misfit(path, first_line(error)) from None


def ropes(config: Any) -> list[dict[str, Any]]:
    """Returns the parameters of a model's rotary embeddings: one mapping, or one for each type of layers."""
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    return [rope] if "rope_type" in rope else [each for each in rope.values() if isinstance(each, dict)]


def longest_short(config: Any) -> int | None:
    """Returns the number of tokens up to which LongRoPE has its short factors; None for other embeddings."""
    longrope = [rope for rope in ropes(config) if rope.get("rope_type") == "longrope"]
    return min((rope["original_max_position_embeddings"] for rope in longrope), default=None)


def fix_rope(config: Any, path: str, tokens: int | None = None) -> None:
    """Gives a configuration one rotary embedding, the one for texts of at most `tokens` tokens (0 or None: as
    many as the model has positions), as vLLM does by its `max_model_len`. transformers chooses by the longest
    row of a batch, so the log-probs of a text would depend on its neighbours. Raises DataError if a text can
    be longer than the range of a `dynamic` embedding.
    """
    positions = config.get_text_config().max_position_embeddings if ropes(config) else 0
    tokens = tokens or positions
    for rope in ropes(config):
        if rope["rope_type"] == "longrope":
            chosen = "long" if tokens > rope["original_max_position_embeddings"] else "short"
            for name in ("factor", "mscale"):
                if (value := rope.get(f"{chosen}_{name}")) is not None:
                    rope |= {f"short_{name}": value, f"long_{name}": value}
        elif rope["rope_type"] == "dynamic" and tokens > positions:
            raise DataError(
                f"model.path={path}: its rotary embeddings change with the length of texts of more than "
                f"{positions} tokens, and prompt and response can have {tokens}, so the log-probs of a text "
                "would depend on other texts of its batch; write a smaller scale.max_new_tokens"
            )


def load_whole(kind: Any, path: str, has_head: bool = True, **choices: Any) -> Any:
    """Returns the model that a class of transformers, such as AutoModelForCausalLM, makes of the files at
    `path`. Without `has_head` the files are of another class, and the model's own head is new. A warning
    names weights that have no place in the model. Raises DataError: files have no weights for parts of the
    model or have them in other shapes, so that transformers would draw them at random; or have layers or a
    head that config.json does not have.
    """
    from transformers.utils import logging

    if "config" not in choices:
        choices["config"] = read_model_config(path)
        fix_rope(choices["config"], path)
    refuse_scales(weight_names(path), f"model.path={path}")
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # its table repeats what is reported below
    try:
        model, report = kind.from_pretrained(
            path, trust_remote_code=False, output_loading_info=True, ignore_mismatched_sizes=True, **choices
        )
    finally:
        logging.set_verbosity(verbosity)
    inside = "" if has_head else f"{model.base_model_prefix}."
    if missing := [name for name in report["missing_keys"] if name.startswith(inside)]:
        raise _misfit(path, f"the files do not have {_some(missing)}")
    if unlike := [f"{name} {[*stored]}, not {[*shape]}" for name, stored, shape in report["mismatched_keys"]]:
        raise _misfit(path, f"the files have {_some(unlike)}")
    tied = model.get_expanded_tied_weights_keys(all_submodels=True).keys()
    # If files have two weights that config.json ties, transformers unties them on this rank only.
    if apart := [*tied - model.all_tied_weights_keys.keys()]:
        raise _misfit(path, f"config.json ties {_some(apart)}, the files do not")
    if extra := [name for name in report["unexpected_keys"] if name.startswith(inside)]:
        known = {_NUMBER.sub("", name) for name in model.state_dict()}
        deeper = [name for name in extra if _NUMBER.sub("", name) in known]
        # Layers that predict further tokens follow the model's own layers, and the model leaves them out.
        spare = getattr(model.config.get_text_config(), "num_nextn_predict_layers", None) or 0
        if len({number for name in deeper for number in _NUMBER.findall(name)[:1]}) > spare:
            raise _misfit(path, f"config.json has no layers for {_some(deeper)}")
        say(f"warning: {path}: the model has no place for {_some(extra)}", sys.stderr)
    return model


def _misfit(path: str, reason: str) -> DataError:
    where = f"{path}: no model can be built from its config.json and weights"
    return _fault(where, reason, "correct config.json, or save the model again")


def _fault(where: str, reason: str, remedy: str) -> DataError:
    return DataError(f"{where} ({reason.rstrip('.')}); {remedy}")


def _some(weights: list[str]) -> str:
    more = f" and {len(weights) - 3} more" if len(weights) > 3 else ""
    return ", ".join(sorted(weights)[:3]) + more


def weight_names(path: str) -> list[str]:
    """Returns the names of a model's weights in its safetensors files; none if it has no such file."""
    from safetensors import safe_open
    from transformers.utils.hub import cached_file

    quiet: Any = {f"_raise_exceptions_for_{what}": False for what in ("missing_entries", "connection_errors")}
    if index := cached_file(path, "model.safetensors.index.json", **quiet):
        return list(json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"])
    if (file := cached_file(path, "model.safetensors", **quiet)) is None:
        return []
    with safe_open(file, "pt") as weights:
        return list(weights.keys())


ATTENTION_LAYERS = ("full_attention", "sliding_attention", "chunked_attention")  # keep keys and values


def recurrent_part(config: Any) -> str | None:
    """Returns the part that keeps a state, in words: `layers of type mamba`. None if only attention does."""
    from transformers import AutoModelForCausalLM

    others = sorted(set(getattr(config, "layer_types", None) or ()) - set(ATTENTION_LAYERS))
    if others:
        return f"layers of type {', '.join(others)}"
    model_class = AutoModelForCausalLM._model_mapping.get(type(config), None)
    return "a recurrent state" if getattr(model_class, "_is_stateful", False) else None
