"""`GROUP=null`, which Hydra takes in defaults of files alone: refused in words before it composes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from bapo_lightning.configuration.conf_dir import choice_files
from bapo_lightning.errors import ConfigError

LISTED = ("logger",)  # groups of which several files, or none, can be chosen


def refuse_null_groups(overrides: Sequence[str]) -> None:
    """Raises ConfigError for every override that chooses null in a group of files."""
    if problems := list(_problems(overrides)):
        raise ConfigError(problems)


def _problems(overrides: Sequence[str]) -> Iterator[str]:
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        if key.startswith("-") or "null" not in re.split(r"[\[\],\s]+", value.strip().lower()):
            continue
        group = key.partition("@")[0]
        if names := choice_files(group):
            if group in LISTED:
                remedy = f"{key}=[]"
            elif "none" in names:
                remedy = f"{key}=none"
            else:
                remedy = f"{key}=NAME, or leave {key} out"
            yield f"{override} is none of its values; write {remedy}"
