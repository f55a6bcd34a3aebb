"""What is no name of a file, such as `GROUP=null` or `GROUP=7`: refused in words before Hydra composes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import OverrideParseException

from bapo_lightning.configuration.conf_dir import choice_files
from bapo_lightning.errors import ConfigError

NODES = ("hydra", "hydra.sweeper", "hydra.launcher")  # whose settings are asked for before any other
LISTED = ("logger",)  # groups of which several files, or none, can be chosen


def refuse_no_names(overrides: Sequence[str]) -> None:
    """Raises ConfigError for every override that chooses something else than names in a group of files."""
    if problems := list(_problems(overrides)):
        raise ConfigError(problems)


def _problems(overrides: Sequence[str]) -> Iterator[str]:
    parser = OverridesParser.create()
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        group = key.partition("@")[0]
        if (node := key.lstrip("~")) in NODES and not value.startswith("{"):
            yield f"{override} leaves nothing of Hydra's own settings; write {node}.KEY=VALUE"
            continue
        if key.startswith(("-", "~")) or not value or not (names := choice_files(group)):
            continue
        try:
            parsed = parser.parse_override(override)
        except OverrideParseException:
            continue  # told when Hydra composes
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
