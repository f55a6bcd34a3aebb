"""Overrides of a sweep in Hydra's grammar, and folder names of its runs."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.types import Quote, QuotedString

from bapo_lightning.run_folder.config_keys import short_names

# Texts that Hydra reads as strings without quotes.
_PLAIN = re.compile(r"[A-Za-z_./-][A-Za-z0-9_./-]*|\d+-[a-z]+|\$\{[\w.:]+\}")
_OTHER_TYPES = {"null", "true", "false", "nan", "inf", "-inf"}
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")
_LONGEST = 120  # characters of a folder name; file systems allow 255 bytes, and `.log` is added
_HASH_LENGTH = 8


def hydra_value(value: Any) -> str:
    """Writes a value of YAML in Hydra's grammar, which reads commas, quotes or `null` in its own way."""
    if value is None:
        return "null"
    if isinstance(value, bool | int | float):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{hydra_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(hydra_value, value)) + "]"
    text = str(value)
    if _PLAIN.fullmatch(text) and text.lower() not in _OTHER_TYPES:
        return text
    return QuotedString(text, Quote.double).with_quotes()


def hydra_overrides(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Writes an override for each key."""
    return tuple(f"{key}={hydra_value(value)}" for key, value in values.items())


def run_names(jobs: Sequence[Sequence[str]]) -> list[str]:
    """Returns a folder name for each job (its overrides), distinct and the same in every session.

    A name holds the values of the job's keys, each key by its shortest unambiguous ending. Characters that do
    not fit a file name are replaced, and then a hash of the overrides keeps the names apart.
    """
    pairs = [[override.split("=", 1) for override in job] for job in jobs]
    short = short_names({key for job in pairs for key, _ in job})
    names = ["-".join(f"{short[key]}_{value}" for key, value in job) for job in pairs]
    taken = Counter(name.lower() for name in names)  # some file systems ignore case
    return [_safe(name, job, taken[name.lower()] > 1) for name, job in zip(names, jobs, strict=True)]


def folder_name(sweep: str, overrides: Sequence[str]) -> str:
    """Returns the folder name of a sweep. Further overrides, in any order, give it a folder of its own."""
    ordered = sorted(overrides)
    return _safe("-".join([f"sweep-{sweep}", *(override.replace("=", "_") for override in ordered)]), ordered)


def _safe(name: str, overrides: Sequence[str], is_taken: bool = False) -> str:
    safe = _UNSAFE.sub("_", name).lstrip(".")
    if safe == name and len(name) <= _LONGEST and not is_taken:
        return name
    return f"{safe[:_LONGEST]}-{hashlib.sha256(' '.join(overrides).encode()).hexdigest()[:_HASH_LENGTH]}"
