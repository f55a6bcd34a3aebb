"""A composed configuration as plain values, and what is read of it before it is validated. Needs no torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, cast

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bapo_lightning.configuration.conf_dir import conf_dir, installed_folders
from bapo_lightning.configuration.spelling import composition_problem
from bapo_lightning.errors import ConfigError
from bapo_lightning.ranks.launch import leads


def compose_run(overrides: Sequence[str]) -> dict[str, Any]:
    """Composes `conf/train.yaml` with overrides into plain values, also inside a command that Hydra composed.
    Raises ConfigError where Hydra cannot.
    """
    return resolve(composed_run(overrides))


def composed_run(overrides: Sequence[str], with_hydra: bool = False) -> DictConfig:
    """`compose_run` before its values are resolved; `with_hydra` adds Hydra's own node, which knows the file
    chosen in each group.
    """
    installed_folders()  # whose error Hydra would wrap in its own
    current = GlobalHydra.instance()
    of_command = current.hydra  # knows the folder of --config-dir as well
    try:
        with nullcontext() if of_command else initialize_config_dir(conf_dir(), version_base="1.3"):
            return compose("train", list(overrides), return_hydra_config=with_hydra)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError([explained(error, overrides)]) from None
    finally:
        current.hydra = of_command


def explained(error: Exception, overrides: Sequence[str], file: str = "train") -> str:
    """A sentence about an error that `conf/<file>.yaml` with `overrides` cannot be composed for."""

    def without(key: str) -> dict[str, Any]:
        rest = [text for text in overrides if text.lstrip("+~").partition("=")[0] != key]
        for tried in (rest, []):  # the rest may be wrong as well
            GlobalHydra.instance().clear()
            with (
                suppress(HydraException, OmegaConfBaseException),
                initialize_config_dir(conf_dir(), version_base="1.3"),
            ):
                composed = compose(file, tried, return_hydra_config=key.startswith("hydra."))
                return cast(dict[str, Any], OmegaConf.to_container(composed, resolve=False))
        return {}

    return composition_problem(error, without)


def resolve(config: DictConfig) -> dict[str, Any]:
    """Plain values of a composed configuration. Raises ConfigError for a key that has none."""
    try:
        return cast(dict[str, Any], OmegaConf.to_container(config, resolve=True, throw_on_missing=True))
    except OmegaConfBaseException as error:
        key, reason = error.full_key, str(error.msg).splitlines()[0]
        raise ConfigError([f"{key} cannot be resolved ({reason}); write {key}=VALUE"]) from None


_TIME = re.compile(r"\d{8}-\d{6}(-\d+)?")  # the last part is the number of a job of Hydra's multirun


def requested_ranks(plain: dict[str, Any]) -> tuple[Any, Any]:
    """(devices, nodes) as they stand in the configuration: ranks are started before it is validated."""
    trainer = plain["trainer"]
    return trainer["devices"], trainer["num_nodes"]


def wants_display(plain: dict[str, Any]) -> bool:
    """Whether this process shows how far the run is: rank 0 does, unless the progress bar is switched off."""
    return leads() and plain["trainer"].get("enable_progress_bar") is not False


def run_folder(plain: dict[str, Any]) -> Path:
    """The configured run folder."""
    return Path(plain["run_folder"])


def folder_prefix(plain: dict[str, Any]) -> str:
    """Prefix of this configuration's run folders, before the time of their start."""
    return f"{plain['algorithm']['name']}-{plain['regime']['name']}-s{plain['seed']}-"


def is_timed_folder(folder: Path, plain: dict[str, Any]) -> bool:
    """Whether the folder has the name that a run of this configuration gives itself when it starts."""
    prefix = folder_prefix(plain)
    return folder.name.startswith(prefix) and bool(_TIME.fullmatch(folder.name.removeprefix(prefix)))


def has_default_folder(plain: dict[str, Any]) -> bool:
    """Whether `run_folder` was left to the time of the start."""
    folder = run_folder(plain)
    return folder.parent == Path(plain["output_root"], plain["name"]) and is_timed_folder(folder, plain)
