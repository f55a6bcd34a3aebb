"""Composes configurations and collects what is wrong with them, for the tests of several rooms."""

import re
from copy import deepcopy
from functools import lru_cache
from pathlib import Path

import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.utils import get_object
from omegaconf import OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException

from bapo_lightning.configuration.compose import composition_problem, resolve
from bapo_lightning.configuration.conf_dir import conf_dir
from bapo_lightning.configuration.group_names import refuse_no_names
from bapo_lightning.configuration.hydra_versions import BASE
from bapo_lightning.configuration.validate import validate
from bapo_lightning.system.errors import ConfigError

CONF = Path(conf_dir())


def names(group):
    return sorted(path.stem for path in (CONF / group).glob("*.yaml") if path.stem != "base")


def algorithms_with(part, holds=lambda target: True):
    """Names of the algorithms that have a part (keys below `algorithm`) whose function or class `holds`."""
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
def _chosen(choices, file):
    if file == "train":
        named = any(choice.startswith("experiment=") for choice in choices)
        choices = ("run_folder=outputs/unused", *(() if named else ("experiment=additions",)), *choices)
    with initialize_config_dir(str(CONF), **BASE):
        return compose(file, overrides=list(choices))


ADDITIONS = yaml.safe_load((CONF / "experiment/additions.yaml").read_text())


@lru_cache(maxsize=256)
def _algorithm(name):
    with initialize_config_dir(str(CONF), **BASE):
        return compose(f"algorithm/{name}").algorithm


def unresolved(*overrides, file="train"):
    """What Hydra makes of a file of conf/ and overrides. It takes a fifth of a second for a choice of groups,
    so that each choice is composed once, an algorithm by itself, as its files do not reach into others;
    values are then set by Hydra's own code. The experiment is the additions unless named.
    """
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    chosen, values, algorithm = [], [], None
    for text, item in zip(overrides, parsed, strict=True):
        if item.key_or_group == "algorithm" and item.value() in names("algorithm"):
            algorithm = item
        if item.key_or_group in GROUPS or "@" in item.input_line:
            chosen.append(text)
        else:
            values.append(item)
    if algorithm is not None and not any(text.startswith("experiment=") for text in chosen):
        chosen.remove(algorithm.input_line)
        config = deepcopy(_chosen(tuple(chosen), file))
        config.algorithm = OmegaConf.merge(_algorithm(algorithm.value()), ADDITIONS["algorithm"])
    else:
        config = deepcopy(_chosen(tuple(chosen), file))
    with flag_override(config, "struct", True):
        ConfigLoaderImpl._apply_overrides_to_config(values, config)
    return config


def composed_or_refused(*overrides, file="train"):
    """`unresolved`, with errors as a command tells them."""
    refuse_no_names(overrides)
    try:
        return unresolved(*overrides, file=file)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError([composition_problem(error, lambda key: {})]) from None


def composed(*overrides, file="train"):
    return resolve(unresolved(*overrides, file=file))


def validated(*overrides):
    return validate(composed(*overrides))


def found(*overrides):
    return problems_of(composed(*overrides))


def problems_of(plain):
    try:
        validate(plain)
    except ConfigError as error:
        return list(error.problems)
    return []
