"""Composes configurations and collects what is wrong with them, for the tests of several rooms."""

from pathlib import Path

from hydra import compose, initialize_config_dir

from bapo_lightning.configuration.compose import resolve
from bapo_lightning.configuration.conf_dir import conf_dir
from bapo_lightning.configuration.run_config import RunConfig
from bapo_lightning.configuration.validate import validate
from bapo_lightning.errors import ConfigError

CONF = Path(conf_dir())


def names(group):
    return sorted(path.stem for path in (CONF / group).glob("*.yaml") if path.stem != "base")


def composed(*overrides):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return resolve(compose("train", overrides=["run_folder=outputs/unused", *overrides]))


def validated(*overrides) -> RunConfig:
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
