"""Names the file that set a refused key, and the key that was written if the refused one follows it."""

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
from bapo_lightning.system.errors import ConfigError

_KEY = re.compile(r"\w+(\.\w+)+")  # at the start of a problem
_REFERENCE = re.compile(r"\$\{(\w+(?:\.\w+)+)\}")


@contextmanager
def name_origins(overrides: Sequence[str], file: str = "train") -> Iterator[None]:
    """Context in which a ConfigError names the choice that set a refused key, unless an override did. A key
    that repeats another key, `${rollout.temperature}`, is reported under that key's name.
    """
    try:
        yield
    except ConfigError as error:
        if type(error) is not ConfigError:
            raise
        values = _values_by_key(overrides, file)
        texts = [_with_origin(text, values) for text in error.problems]
        raise ConfigError(list(dict.fromkeys(texts))) from error


def _with_origin(text: str, values: dict[str, tuple[str, Any]]) -> str:
    match = _KEY.match(text)
    if match is None or match[0] not in values:
        return text
    choice, value = values[match[0]]
    if isinstance(value, str) and (reference := _REFERENCE.fullmatch(value)):
        return _with_origin(reference[1] + text[match.end() :], values)
    remedy = f"; {match[0]}=null takes it back" if " is not an option of " in text else ""
    return f"{text} ({choice} sets it{remedy})"


def _values_by_key(overrides: Sequence[str], file: str) -> dict[str, tuple[str, Any]]:
    """Returns the choice that set each key that no override set, and the value as its file has it."""
    hydra = GlobalHydra.instance()
    context = nullcontext() if hydra.is_initialized() else initialize_config_dir(conf_dir(), **BASE)
    files = []  # of a configuration that cannot be composed
    with context, suppress(HydraException, OmegaConfBaseException, ValueError):
        loader: Any = GlobalHydra.instance().config_loader()
        files = loader.compute_defaults_list(file, list(overrides), RunMode.RUN).defaults
        repository = loader.repository  # finds the user's own files, too
    values: dict[str, tuple[str, Any]] = {}
    for used in files:
        group, _, name = (used.config_path or "").rpartition("/")
        if not group or group.startswith("hydra"):
            continue
        place = f"{used.package}." if used.package not in (None, "", "_global_") else ""
        if (loaded := repository.load_config(used.config_path)) is None:  # of `hydra.searchpath`
            values = {key: value for key, value in values.items() if not key.startswith(place)}
        elif isinstance(content := loaded.config, DictConfig):
            plain = cast(dict[str, Any], OmegaConf.to_container(content, resolve=False))
            for key in dotted_keys(plain):
                if (value := node_at(plain, key.split("."))) != MISSING:
                    values[f"{place}{key}"] = (f"{group}={name}", value)
    typed = {text.lstrip("+~").partition("=")[0] for text in overrides}
    typed = {key for key in typed if not choice_files(key.partition("@")[0])}
    above = tuple(f"{key}." for key in typed)
    return {key: value for key, value in values.items() if not f"{key}.".startswith(above)}
