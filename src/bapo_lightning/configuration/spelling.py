"""Sentences about what Hydra cannot compose, with the key or the choice that is probably meant."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from hydra.errors import MissingConfigException, OverrideParseException

from bapo_lightning.configuration.conf_dir import choice_files
from bapo_lightning.errors import taken

TABLE = ("data.train.path", "problem_set@data.train")  # as people try to choose their own data
PLUGINS = ', and those of Hydra\'s plugins (.venv/bin/python -m pip install -e ".[sweep]")'
SHARED = ("base",)  # files that others build on and that are no choice by themselves
_KEY = re.compile(r"Could not (?:override|delete from config\.) '([^']+)'")
_TAKEN = re.compile(r"An item is already at '([^']+)'")
_MEANT = re.compile(r"Did you mean to override (.*?)\?")

Node = Mapping[str, Any]


def composition_problem(error: Exception, known: Callable[[str], Node]) -> str:
    """Returns a sentence about an error of Hydra's composition.

    Args:
        error: Hydra's or OmegaConf's.
        known: composes the configuration without the overrides of a key, to find the one that is meant.
    """
    text = str(error)
    if isinstance(error, OverrideParseException):
        key, _, value = error.override.partition("=")
        return f"""{error.override} cannot be read; put the value in quotes: '{key}="{value}"'"""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.rpartition("/")
        known_names = sorted(name for name in choice_files(group) if name not in SHARED)
        plugins = PLUGINS if group == "hydra/launcher" else ""
        return f"{group}={name} is no choice; {taken(name, known_names)}{plugins}"
    if match := _TAKEN.search(text):
        return f"{match[1]} is an option already; leave out the + before it"
    if match := _KEY.search(text):
        key = match[1]
        if key in TABLE:
            return f"{key} is not chosen here; a table of your own is data=table data.train.path=FILE"
        if "@" in key or "/" in key:
            meant = _MEANT.search(text)
            return f"{key} is not chosen here{f'; did you mean {meant[1]}?' if meant else ''}"
        return f"{key} is not an option; {meant_key(key, known(key))}"
    return text.splitlines()[0]


def meant_key(key: str, known: Node) -> str:
    """The end of a sentence about an unknown `key`: the one that is meant, or what its place takes."""
    parts = key.split(".")
    depth = next(n for n in range(len(parts) - 1, -1, -1) if isinstance(node_at(known, parts[:n]), Mapping))
    place, siblings = ".".join(parts[:depth]), node_at(known, parts[:depth])
    if near := get_close_matches(parts[depth], siblings, 1):
        whole = [*parts[:depth], near[0], *parts[depth + 1 :]]
        meant = whole if node_at(known, whole) is not None else whole[: depth + 1]
        return f"did you mean {'.'.join(meant)}?"
    keys = [
        found
        for found in dotted_keys(known)
        if (depth == 0 or found.startswith(f"{parts[0]}.")) and not key.startswith(f"{found}.")
    ]
    same = [found for found in keys if found.rpartition(".")[2] == parts[-1]]
    if meant := same[:3] or get_close_matches(key, keys, 1, cutoff=0.75):
        return f"did you mean {' or '.join(meant)}?"
    takes = f"{place or 'the configuration'} takes {', '.join(siblings) or 'nothing'}"
    if "_target_" in siblings:
        return f"{takes}; write +{key} for another option of {siblings['_target_']}"
    return takes


def dotted_keys(node: Node, prefix: str = "") -> Iterator[str]:
    """Yields the keys of a configuration and of its nodes, with dots."""
    for key, value in node.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from dotted_keys(value, f"{prefix}{key}.")


def node_at(known: Node, parts: Sequence[str]) -> Any:
    """The node that the parts of a dotted key lead to; None if there is none."""
    node: Any = known
    for part in parts:
        node = node.get(part) if isinstance(node, Mapping) else None
    return node
