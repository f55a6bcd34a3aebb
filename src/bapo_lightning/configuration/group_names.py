"""Group choices that are not file names: a custom model or table is put into the right key; any other
value, such as `GROUP=null` or `GROUP=7`, is refused before Hydra composes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import OverrideParseException

from bapo_lightning.configuration.conf_dir import choice_files
from bapo_lightning.system.errors import ConfigError

NODES = ("hydra", "hydra.sweeper", "hydra.launcher")  # whose settings are read before any other
LISTED = ("logger",)  # groups of which several files, or none, can be chosen


def expanded_overrides(overrides: Sequence[str]) -> list[str]:
    """Returns the overrides with `data=FILE` and `model=FOLDER` as the configuration writes them:
    `data=table data.train.path=FILE` and `model.path=FOLDER`, which may be a name on the hub.
    """
    return [text for override in overrides for text in _placed(override)]


def _placed(override: str) -> list[str]:
    group, _, value = override.partition("=")
    name = value.strip("\"'")
    is_place = ("/" in name or Path(name).exists()) and name not in choice_files(group)
    if group not in ("data", "model") or not is_place or "," in name:
        return [override]
    return [f"{key}={text}" for key, text in keys_of_place(group, value).items()]


def keys_of_place(group: str, place: str) -> dict[str, str]:
    """Keys and values that point to a table or a model folder, for the groups `data` and `model`."""
    return {"model.path": place} if group == "model" else {"data": "table", "data.train.path": place}


def refuse_no_names(overrides: Sequence[str]) -> None:
    """Raises ConfigError for every override that chooses anything but names in a group of files."""
    if problems := list(_problems(overrides)):
        raise ConfigError(problems)


def _problems(overrides: Sequence[str]) -> Iterator[str]:
    parser = OverridesParser.create()
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        group = key.partition("@")[0]
        if (node := key.lstrip("~")) in NODES and not value.startswith("{"):
            yield f"{override} removes Hydra's own settings; write {node}.KEY=VALUE"
            continue
        if key.startswith(("-", "~")) or not value or not (names := choice_files(group)):
            continue
        try:
            parsed = parser.parse_override(override)
        except OverrideParseException:
            continue  # reported when Hydra composes
        chosen = None if parsed.is_sweep_override() else parsed.value()
        items = chosen if isinstance(chosen, list) else [chosen]
        if parsed.is_sweep_override() or all(isinstance(item, str) for item in items):
            continue
        if group in LISTED:
            remedy = f"{key}=[]"
        elif "none" in names:
            remedy = f"{key}=none"
        else:
            remedy = f"{key}=NAME, or leave {key} out"
        yield f"{override} is none of its values; write {remedy}"
