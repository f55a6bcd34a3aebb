"""Folders of LoRA adapters, as peft, TRL and verl write them, on their base model in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.system.errors import DataError, first_line
from bapo_lightning.system.run_folder.shapes import shaped

CONFIG, FILE = "adapter_config.json", "adapter_model.safetensors"


class _AdapterConfig(TypedDict):
    peft_type: Literal["LORA"]
    base_model_name_or_path: NotRequired[str | None]


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter and no model."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").is_file()


def base_of(folder: Path, named: str | None) -> str:
    """Returns the folder or hub name of an adapter's base model: `named`, else the one that it names.

    Raises DataError: it is not a LoRA adapter, has no file of weights, or names no base model.
    """
    try:
        config = shaped(_AdapterConfig, json.loads((folder / CONFIG).read_text(encoding="utf-8")))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{folder / CONFIG} does not describe a LoRA adapter ({first_line(error)})") from None
    if not (folder / FILE).is_file():
        raise DataError(f"{folder} has no {FILE}; save the adapter again with peft's save_pretrained")
    if (base := named or config.get("base_model_name_or_path")) is None:
        raise DataError(f"{folder / CONFIG} names no base model; write --base FOLDER")
    return model_path(base)


def with_adapter(model: Any, folder: Path) -> Any:
    """Returns a base model with an adapter added to its weights.

    Raises DataError: its weights do not fit the model, or are more or fewer than its configuration says.
    """
    from peft import PeftModel, get_peft_model_state_dict
    from safetensors import safe_open

    try:
        with safe_open(folder / FILE, "pt") as file:
            there = {*file.keys()}
        adapted = PeftModel.from_pretrained(model, str(folder), autocast_adapter_dtype=False)
        apart = there ^ get_peft_model_state_dict(adapted).keys()
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except Exception as error:  # peft, safetensors and torch have their own types
        raise _misfit(folder, first_line(error)) from None
    if apart:
        raise _misfit(folder, f"{min(apart)} is in one of the two only")
    ends = [model.get_input_embeddings(), model.get_output_embeddings()]
    if model.config.get_text_config().tie_word_embeddings and any(hasattr(end, "lora_A") for end in ends):
        raise DataError(
            f"the adapter in {folder} adapts a weight that embedding and head of its base model share; a "
            "probe would add it to both, so merge it first, with separate weights"
        )
    return adapted.merge_and_unload()


def _misfit(folder: Path, reason: str) -> DataError:
    remedy = "write its base model with --base FOLDER, or save the adapter again"
    return DataError(f"the adapter in {folder} does not fit its base model ({reason}); {remedy}")
