"""Differences between Hydra 1.3 and 1.4.

1.4 deprecates `version_base`, requires the names of the targets that may be made, and passes exceptions of
a target through, which 1.3 wraps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from hydra import utils
from hydra.errors import InstantiationException
from omegaconf import OmegaConf

_HAS_WHITELIST = hasattr(utils, "execution_whitelist")
BASE: dict[str, Any] = {} if _HAS_WHITELIST else {"version_base": "1.3"}
# What Hydra itself makes from `conf/`: the table of multirun; it requests no other callbacks.
OWN_TARGETS: dict[str, Any] = {"execution_whitelist": ["bapo_lightning.*"]} if _HAS_WHITELIST else {}
logging.getLogger("hydra.utils").setLevel(logging.CRITICAL)  # it logs the errors that it raises


def instantiate(node: dict[str, Any], targets: Iterable[str]) -> Any:
    """Makes the object that `node` describes, from plain values and the `targets` named in it."""
    allowed = {"_execution_whitelist_": [*targets]} if _HAS_WHITELIST else {}
    try:
        return utils.instantiate(node, _convert_="all", **allowed)
    except SystemExit as error:
        raise InstantiationException("it ended the process") from error


def raised_by(error: Exception) -> BaseException | None:
    """The exception that a target raised while it was made; None if the error is Hydra's own."""
    return error.__cause__ if isinstance(error, InstantiationException) else error


def register_resolver(name: str, function: Callable[..., Any]) -> None:
    """Adds a function to interpolations, `${name:...}`."""
    # OmegaConf 2.3, which comes with Hydra 1.3, has a different function with that name.
    register: Any = OmegaConf.register_resolver if _HAS_WHITELIST else OmegaConf.register_new_resolver
    register(name, function, replace=True)
