"""What a verifier worker gives up before it reads the first answer: memory, CPU time, files, other processes,
the network, compiling code.

The limits are the kernel's (`setrlimit`). The rest is an audit hook of the interpreter (PEP 578): code cannot
be compiled from a string, so that `eval`, `exec`, sympy's string parser and `lambdify` fail whoever calls
them, and nothing is written, started or connected to. A hook is no jail for hostile *code*; it is the second
wall behind a reader that has no way from text to code in the first place.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any

MEGABYTE = 1 << 20
_ALLOWED = {
    "import", "exec", "marshal.loads", "object.__getattr__", "object.__setattr__", "object.__delattr__", "sys._getframe",
    "os.listdir", "os.scandir", "builtins.id", "time.sleep", "sys.excepthook", "sys.unraisablehook", "resource.setrlimit",
    "array.__new__", "function.__new__", "cpython._PySys_ClearAuditHooks",
}  # fmt: skip


class Refused(Exception):
    """Something in the worker tried what a verifier has no need of."""


class Sandbox:
    """The limits of this process, from `enter` to its end. `refusals` lists what was tried since it was last
    emptied.
    """

    def __init__(self, memory_megabytes: int) -> None:
        self.memory_megabytes = memory_megabytes
        self.refusals: list[str] = []

    def enter(self) -> None:
        """Give everything up. There is no way back."""
        set_limit(resource.RLIMIT_AS, address_space() + self.memory_megabytes * MEGABYTE)
        set_limit(resource.RLIMIT_FSIZE, 0)
        set_limit(resource.RLIMIT_CORE, 0)
        set_limit(resource.RLIMIT_NPROC, 0)
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if (
            event in _ALLOWED
            or (event == "open" and _reads(arguments))
            or (event == "compile" and _is_file(arguments))
        ):
            return
        self.refusals.append(event)
        raise Refused(event)


def set_limit(kind: int, value: int) -> None:
    """Lower a resource limit of this process, soft and hard; a limit that is lower already stays."""
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def limit_cpu_seconds(more: float) -> None:
    """Let the kernel end this process after `more` further seconds of CPU time, should nobody be there to
    kill it.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime + more) + 2, hard))


def address_space() -> int:
    """Bytes of address space that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def peak_memory() -> int:
    """Largest resident size that this process ever had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _reads(arguments: tuple[Any, ...]) -> bool:
    """Whether an `open` event is the import system reading a module."""
    path, mode, _ = arguments
    return (
        isinstance(path, str | bytes)
        and str(path).rstrip("'").endswith((".py", ".pyc"))
        and mode in ("r", "rb")
    )


def _is_file(arguments: tuple[Any, ...]) -> bool:
    """Whether a `compile` event is the import system compiling a module whose bytecode is not cached."""
    name = arguments[1]
    return isinstance(name, str) and name.startswith("/") and name.endswith(".py")
