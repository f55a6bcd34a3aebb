"""The plan of a configuration, and the sizes of the model that it is for."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bapo_lightning.configuration.run_config import RunConfig
from bapo_lightning.configuration.run_shape import assumptions, run_shape
from bapo_lightning.configuration.sections import Model
from bapo_lightning.errors import ConfigError, DataError
from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.plan.gpus import GPUS, Gpu
from bapo_lightning.plan.model_shape import model_shape
from bapo_lightning.plan.planning import Plan, make_plan


def plan_of(config: RunConfig, gpu: Gpu | None = None) -> Plan:
    """The plan of a configuration, on `plan.gpu` unless another GPU is given.

    Raises:
        DataError: the model's sizes are not known.
    """
    shape = model_shape(architecture(config.model))
    return make_plan(run_shape(config, shape), gpu or GPUS[config.plan.gpu], assumptions(config))


def architecture(model: Model) -> dict[str, Any]:
    """The model's config.json: `model.architecture`, the folder's, or the hub's.

    Raises:
        DataError: there is none.
    """
    return dict(model.architecture) if model.architecture is not None else _architecture_of_files(model.path)


def check_architecture(model: Model) -> None:
    """Refuse a model of other sizes than `model.architecture` says: the plan would be another model's.

    Raises:
        ConfigError: they differ.
    """
    if model.architecture is None:
        return
    remedy = f"write model.path=FOLDER, or fetch it first: hf download {model.path}"
    files = _architecture_of_files(model.path, remedy)
    claimed, found = model_shape(model.architecture), model_shape(files)
    real = asdict(found)
    differing = [
        f"{key} {said} instead of {real[key]}" for key, said in asdict(claimed).items() if said != real[key]
    ]
    if differing:
        problem = f"model.architecture is not that of {model.path}: {', '.join(differing)}"
        raise ConfigError([f"{problem}; write architecture: null"])


def _architecture_of_files(
    path: str, remedy: str = "write model.architecture, or a folder"
) -> dict[str, Any]:
    file = Path(model_path(path), "config.json")
    if not file.is_file():
        file = _from_hub(model_path(path), remedy)
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except ValueError as error:
        raise DataError(f"{file} is not JSON ({error}); save the model again") from None


def _from_hub(path: str, remedy: str) -> Path:
    from transformers.utils.hub import cached_file

    try:
        found = cached_file(path, "config.json")
    except OSError as error:
        reason = str(error).splitlines()[0]
        raise DataError(
            f"model.path={path}: its config.json could not be loaded ({reason}); {remedy}"
        ) from None
    if found is None:
        raise DataError(f"model.path={path}: its folder has no config.json; {remedy}")
    return Path(found)
