"""A composed configuration as plain values."""

from __future__ import annotations

from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bapo_lightning.errors import ConfigError

OmegaConf.register_new_resolver("sum", lambda *terms: sum(terms))
OmegaConf.register_new_resolver("max", lambda *terms: max(terms))


def resolve(config: DictConfig) -> dict[str, Any]:
    """Plain values of a composed configuration. Raises ConfigError for a key without a value or a reference
    to nothing.
    """
    try:
        return cast(dict[str, Any], OmegaConf.to_container(config, resolve=True, throw_on_missing=True))
    except OmegaConfBaseException as error:
        raise ConfigError(
            [
                f"{error.full_key} cannot be resolved ({str(error.msg).splitlines()[0]}); write "
                f"{error.full_key}=VALUE"
            ]
        ) from None
