"""Which chosen file set a key that is refused and that nobody typed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, cast

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bapo_lightning.configuration.compose import dotted_keys, node_at
from bapo_lightning.configuration.conf_dir import choice_files, conf_dir
from bapo_lightning.configuration.hydra_versions import BASE
from bapo_lightning.errors import ConfigError

_KEY = re.compile(r"\w+(\.\w+)+")  # that a problem begins with


@contextmanager
def origins_told(overrides: Sequence[str], file: str = "train") -> Iterator[None]:
    """Context in which a ConfigError says of each refused key which choice set it, unless an override did."""
    try:
        yield
    except ConfigError as error:
        if type(error) is not ConfigError:
            raise
        choices = _choices_by_key(overrides, file)
        raise ConfigError([_with_choice(text, choices) for text in error.problems]) from error


def _with_choice(text: str, choices: dict[str, str]) -> str:
    found = _KEY.match(text)
    if found is None or not (choice := choices.get(found[0])):
        return text
    remedy = f"; {found[0]}=null takes it back" if " is not an option of " in text else ""
    return f"{text} ({choice} sets it{remedy})"


def _choices_by_key(overrides: Sequence[str], file: str) -> dict[str, str]:
    hydra = GlobalHydra.instance()
    context = nullcontext() if hydra.is_initialized() else initialize_config_dir(conf_dir(), **BASE)
    files = []  # of what cannot be composed
    with context, suppress(HydraException, OmegaConfBaseException, ValueError):
        loader = GlobalHydra.instance().config_loader()
        files = loader.compute_defaults_list(file, list(overrides), RunMode.RUN).defaults
    choices: dict[str, str] = {}
    for used in files:
        group, _, name = (used.config_path or "").rpartition("/")
        if not group or group.startswith("hydra") or name not in (known := choice_files(group)):
            continue
        if isinstance(content := OmegaConf.load(known[name]), DictConfig):
            place = f"{used.package}." if used.package not in (None, "", "_global_") else ""
            plain = cast(dict[str, Any], OmegaConf.to_container(content, resolve=False))
            choices |= {
                f"{place}{key}": f"{group}={name}"
                for key in dotted_keys(plain)
                if node_at(plain, key.split(".")) != MISSING
            }
    typed = {text.lstrip("+~").partition("=")[0] for text in overrides}
    typed = {key for key in typed if not choice_files(key.partition("@")[0])}
    return {key: choice for key, choice in choices.items() if not _is_typed(key, typed)}


def _is_typed(key: str, typed: set[str]) -> bool:
    return any(f"{key}.".startswith(f"{one}.") for one in typed)
