"""Limits that a process sets for itself before it handles a policy's output; the kernel enforces them."""

from __future__ import annotations

import resource
from pathlib import Path

MEGABYTE = 1 << 20


def set_limit(kind: int, value: int) -> None:
    """Lowers a resource limit of this process, soft and hard; keeps one that is already lower."""
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def limit_memory(megabytes: int) -> None:
    """Allows this process so much more address space than it has."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    set_limit(resource.RLIMIT_AS, used + megabytes * MEGABYTE)
