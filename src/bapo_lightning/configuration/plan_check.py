"""The plan of a configuration, and the refusal to start what cannot fit."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from bapo_lightning.configuration.checks import batch_complaints, number_complaints
from bapo_lightning.configuration.engine_checks import engine_complaints
from bapo_lightning.configuration.model_checks import model_complaints
from bapo_lightning.configuration.plan_keys import plan_complaints
from bapo_lightning.configuration.regime_checks import regime_complaints
from bapo_lightning.errors import ConfigError, DataError
from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.plan.console import verdict
from bapo_lightning.plan.gpus import Gpu, find_gpu
from bapo_lightning.plan.model_shape import model_shape
from bapo_lightning.plan.planning import Plan, make_plan
from bapo_lightning.plan.reading import assumptions, run_shape

Config = dict[str, Any]


def plan_of(config: Config, gpu: Gpu | None = None) -> Plan:
    """The plan of a resolved configuration, on `plan.gpu` unless another GPU is given.

    Raises:
        ConfigError: values that nothing can be reckoned from.
        DataError: the model's sizes are not to be had.
    """
    found = list(number_complaints(config)) or [
        *batch_complaints(config),
        *regime_complaints(config),
        *engine_complaints(config),
    ]
    found += [
        *model_complaints(config),
        *plan_complaints(config),
    ]  # not what this machine has: the run may be another one's
    if found:
        raise ConfigError(found)
    shape = model_shape(architecture(config["model"]))
    return make_plan(run_shape(config, shape), gpu or find_gpu(config["plan"]["gpu"]), assumptions(config))


def architecture(model: Config) -> dict[str, Any]:
    """The model's config.json: `model.architecture`, the folder's, or the hub's.

    Raises:
        DataError: neither is there.
    """
    if model["architecture"] is not None:
        return dict(model["architecture"])
    path = model_path(model["path"])
    file = Path(path, "config.json")
    if not file.is_file():
        file = _from_hub(path)
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except ValueError as error:
        raise DataError(f"{file} is not JSON ({error}); save the model again") from None


def check_architecture(model: Config) -> None:
    """Refuse a model of other sizes than `model.architecture` says: whatever was planned would be another's.

    Raises:
        ConfigError: they differ.
    """
    if model["architecture"] is None:
        return
    claimed, found = (
        model_shape(config)
        for config in (model["architecture"], architecture(model | {"architecture": None}))
    )
    pairs = [
        (field.name, getattr(claimed, field.name), getattr(found, field.name)) for field in fields(claimed)
    ]
    differing = [f"{name} {said} instead of {real}" for name, said, real in pairs if said != real]
    if differing:
        raise ConfigError(
            [
                f"model.architecture is not that of {model['path']}: {', '.join(differing)}; write "
                "architecture: null"
            ]
        )


def check_fit(config: Config) -> None:
    """Refuse a run that cannot fit the GPUs found here. Silent on a CPU, where memory is not counted.

    Raises:
        ConfigError: it does not fit, and `plan.ignore` is not set.
    """
    import torch

    if (
        config["plan"]["ignore"]
        or config["trainer"]["accelerator"] not in ("auto", "gpu", "cuda")
        or not torch.cuda.is_available()
    ):
        return
    try:
        table = find_gpu(config["plan"]["gpu"])
        found = torch.cuda.get_device_properties(0)
        gpu = Gpu(found.name, float(found.total_memory), table.bytes_per_second, table.flops_per_second)
        plan = plan_of(config | {"plan": config["plan"] | {"gpus": None}}, gpu)
    except DataError as error:
        print(f"not planned: {error}")
        return
    if plan.problems:
        raise ConfigError(
            [*plan.problems, f"{verdict(plan)[0]} write plan.ignore=true to begin all the same"]
        )


def _from_hub(path: str) -> Path:
    from transformers.utils.hub import cached_file

    try:
        found = cached_file(path, "config.json")
    except OSError as error:
        reason = str(error).splitlines()[0]
        raise DataError(
            f"model.path={path}: its config.json could not be loaded ({reason}); write model.architecture, "
            "or a folder"
        ) from None
    return Path(str(found))
