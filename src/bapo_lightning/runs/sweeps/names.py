"""How the overrides of a sweep are written for Hydra, and what the folders of its runs are called."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

from bapo_lightning.run_folder.config_keys import short_names

_PLAIN = re.compile(r"[A-Za-z_./-][A-Za-z0-9_./-]*")  # what Hydra reads as a string without quotes
_OTHER_TYPES = {"null", "true", "false", "nan", "inf", "-inf"}
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")
_LONGEST = 120  # characters of a folder name; file systems end at 255 bytes, and `.log` is added
_HASH_LENGTH = 8


def hydra_value(value: Any) -> str:
    """A value of YAML in the grammar of Hydra's overrides, which would otherwise read commas, quotes or
    `null` in its own way.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{hydra_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(hydra_value(item) for item in value) + "]"
    text = str(value)
    if (_PLAIN.fullmatch(text) and text.lower() not in _OTHER_TYPES) or _is_interpolation(text):
        return text
    # Hydra drops one backslash of every pair before a quote, so those alone are doubled.
    escaped = re.sub(r"(\\*)(\"|$)", lambda found: found[1] * 2 + ('\\"' if found[2] else ""), text)
    return f'"{escaped}"'


def run_names(jobs: Sequence[Sequence[str]]) -> list[str]:
    """A folder name for each job (its overrides), distinct, and the same in every session.

    The shortest endings of the keys that tell them apart, with their values. What does not fit into a file
    name is replaced, and then a hash of the overrides keeps the names apart.
    """
    short = short_names({override.partition("=")[0] for job in jobs for override in job})
    names = [
        "-".join(f"{short[key]}_{value}" for key, _, value in (override.partition("=") for override in job))
        for job in jobs
    ]
    taken = [name.lower() for name in names]  # some file systems do not tell capitals apart
    return [
        _safe(name, job, always=taken.count(name.lower()) > 1) for name, job in zip(names, jobs, strict=True)
    ]


def folder_name(sweep: str, overrides: Sequence[str]) -> str:
    """Folder name of a sweep; runs that differ from its file in other overrides have a folder apart. Their
    order does not matter.
    """
    ordered = sorted(overrides)
    return _safe("-".join([f"sweep-{sweep}", *(override.replace("=", "_") for override in ordered)]), ordered)


def _safe(name: str, overrides: Sequence[str], always: bool = False) -> str:
    safe = _UNSAFE.sub("_", name).lstrip(".")
    if safe == name and len(name) <= _LONGEST and not always:
        return name
    return f"{safe[:_LONGEST]}-{hashlib.sha256(' '.join(overrides).encode()).hexdigest()[:_HASH_LENGTH]}"


def _is_interpolation(text: str) -> bool:
    return bool(re.fullmatch(r"\$\{[\w.:]+\}", text))
