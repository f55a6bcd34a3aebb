"""Limits that a process sets to itself, before it touches what a policy wrote; the kernel keeps them."""

from __future__ import annotations

import resource
from pathlib import Path

MEGABYTE = 1 << 20


def set_limit(kind: int, value: int) -> None:
    """Lowers a resource limit of this process, soft and hard; keeps one that is lower already."""
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def limit_memory(megabytes: int) -> None:
    """Lets this process take so much more address space than it has."""
    set_limit(resource.RLIMIT_AS, address_space() + megabytes * MEGABYTE)


def address_space() -> int:
    """Address space of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
