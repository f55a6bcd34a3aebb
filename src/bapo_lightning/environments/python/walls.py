"""Takes away from a process, before it runs what a policy wrote, what a computation does not need.

With walls=kernel the kernel refuses the rest (`kernel.py`). With walls=interpreter an audit hook of the
interpreter does (PEP 578), which native code walks around: it stops accidents and simple attacks.
"""

from __future__ import annotations

import math
import os
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bapo_lightning.environments.python.kernel import raise_walls
from bapo_lightning.environments.python.limits import CallLimits
from bapo_lightning.limits import MEGABYTE, limit_memory, set_limit

_OPEN_FILES = 64
_REFUSED = (
    "socket.", "subprocess.", "os.fork", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.kill",
    "signal.pthread_kill", "pty.", "ctypes.", "syslog.", "os.chmod", "os.chown", "os.setxattr", "resource.",
    "os.link", "os.symlink", "os.utime", "fcntl.", "sys.addaudithook", "gc.", "mmap.",
)  # fmt: skip
_CHANGES = ("os.mkdir", "os.rmdir", "os.remove", "os.rename", "os.truncate", "shutil.")
_LISTS = ("os.listdir", "os.scandir")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def enclose(limits: CallLimits, scratch: Path) -> None:
    """Encloses this process for the rest of its life; it can write to its own descriptors and to `scratch`.
    Raises OSError if the kernel refuses.
    """
    limit_memory(limits.memory_megabytes)
    set_limit(resource.RLIMIT_CPU, math.ceil(limits.seconds) + 1)  # if the host is gone
    set_limit(resource.RLIMIT_FSIZE, limits.file_megabytes * MEGABYTE)
    set_limit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    set_limit(resource.RLIMIT_NPROC, 0)
    set_limit(resource.RLIMIT_CORE, 0)
    if limits.walls == "kernel":
        raise_walls(_libraries(), scratch)
    else:
        sys.addaudithook(_hook(_libraries(), scratch))


def _libraries() -> list[Path]:
    system = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo")
    devices = ("/etc/ld.so.cache", "/dev/null", "/dev/zero", "/dev/urandom")
    return [Path(path) for path in (*filter(None, sys.path), f"{sys.base_prefix}/lib", *system, *devices)]


def _hook(libraries: Sequence[Path], scratch: Path) -> Callable[[str, tuple[Any, ...]], None]:
    writable = [os.path.realpath(scratch)]
    readable = [*writable, *(os.path.realpath(path) for path in libraries)]

    def lies_in(path: Any, folders: list[str]) -> bool:
        if isinstance(path, int) or path is None:  # a descriptor, whose opening was allowed
            return True
        real = os.path.realpath(os.fsdecode(path))
        return any(real == folder or real.startswith(folder + os.sep) for folder in folders)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            is_allowed = lies_in(path, writable if flags & _WRITING else readable)
        elif event.startswith(_CHANGES):
            is_allowed = all(lies_in(path, writable) for path in arguments if isinstance(path, str | bytes))
        else:
            is_allowed = not event.startswith(_REFUSED)
            if event in _LISTS:
                is_allowed = lies_in(arguments[0] or ".", readable)
        if not is_allowed:
            raise PermissionError(f"{event} is refused here")

    return hook
