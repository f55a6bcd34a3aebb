"""Folder names of a sweep and of its runs."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence

from bapo_lightning.run_folder.config_keys import short_names

_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")
_LONGEST = 120  # characters of a folder name; file systems allow 255 bytes, and `.log` is added
_HASH_LENGTH = 8


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
