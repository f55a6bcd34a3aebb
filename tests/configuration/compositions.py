"""Composes configurations and collects what is wrong with them, for the tests of several rooms."""

import re
from copy import deepcopy
from functools import lru_cache
from pathlib import Path

import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.utils import get_object
from omegaconf import flag_override

from bapo_lightning.configuration.compose import resolve
from bapo_lightning.configuration.conf_dir import conf_dir
from bapo_lightning.configuration.validate import validate
from bapo_lightning.errors import ConfigError

CONF = Path(conf_dir())


def names(group):
    return sorted(path.stem for path in (CONF / group).glob("*.yaml") if path.stem != "base")


def algorithms_with(part, holds=lambda target: True):
    """Names of the algorithms that have a part, and whose function or class of it holds what is asked.

    Args:
        part: its keys below `algorithm`, with dots.
        holds: (function or class) -> bool.
    """

    known = {*names("algorithm"), "base"}

    def target(name):
        found = file = yaml.safe_load((CONF / "algorithm" / f"{name}.yaml").read_text())
        for key in part.split("."):
            found = (found or {}).get(key)
        if found and "_target_" in found:
            return found["_target_"]
        parents = [choice for choice in file.get("defaults", []) if str(choice) in known]
        return target(parents[0]) if parents else None

    found = {name: target(name) for name in names("algorithm")}
    return [name for name, path in found.items() if path is not None and holds(get_object(path))]


def ships(text):
    """Whether the algorithms that a text chooses are there; a rival may have been deleted."""
    return set(re.findall(r"algorithm=(\w+)", text)) <= {*names("algorithm")}


GROUPS = {path.relative_to(CONF).as_posix() for path in CONF.rglob("*") if path.is_dir()}


@lru_cache(maxsize=256)
def _chosen(choices):
    if not any(choice.startswith("experiment=") for choice in choices):
        choices = ("experiment=additions", *choices)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("train", overrides=["run_folder=outputs/unused", *choices])


def unresolved(*overrides):
    """What Hydra makes of overrides. It takes a fifth of a second for a choice of groups, so that each choice
    is composed once; values are then set by Hydra's own code. The experiment is the additions unless named.
    """
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    is_choice = [item.key_or_group in GROUPS or "@" in item.input_line for item in parsed]
    config = deepcopy(
        _chosen(tuple(text for text, choice in zip(overrides, is_choice, strict=True) if choice))
    )
    values = [item for item, choice in zip(parsed, is_choice, strict=True) if not choice]
    with flag_override(config, "struct", True):
        ConfigLoaderImpl._apply_overrides_to_config(values, config)
    return config


def composed(*overrides):
    """The resolved configuration."""
    return resolve(unresolved(*overrides))


def validated(*overrides):
    return validate(composed(*overrides))


def found(*overrides):
    """Everything that is wrong."""
    return problems_of(composed(*overrides))


def problems_of(plain):
    try:
        validate(plain)
    except ConfigError as error:
        return list(error.problems)
    return []
