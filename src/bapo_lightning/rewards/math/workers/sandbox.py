"""Takes away from a worker, before it reads the first answer, everything that judging does not need.

The kernel limits memory, CPU time, file sizes and new processes (`setrlimit`). An audit hook of the
interpreter (PEP 578) refuses the rest: compiling code from a string, so that `eval`, `exec`, sympy's string
parser and `lambdify` fail wherever they are called, and opening files, starting processes and connecting. A
hook is no jail for hostile *code*; it is the second wall behind a reader that never turns text into code.
"""

from __future__ import annotations

import resource
import sys
from typing import Any

from bapo_lightning.limits import limit_memory, set_limit

_ALLOWED = {
    "import", "exec", "marshal.loads", "object.__getattr__", "object.__setattr__", "object.__delattr__",
    "sys._getframe", "os.listdir", "os.scandir", "builtins.id", "time.sleep", "sys.excepthook",
    "sys.unraisablehook", "resource.setrlimit", "array.__new__", "function.__new__",
    "cpython._PySys_ClearAuditHooks",
}  # fmt: skip


class Refused(Exception):
    """An operation that judging does not need was refused."""


class Sandbox:
    """The limits of this process from `enter` on; `refusals` lists events refused since it was cleared."""

    def __init__(self, memory_megabytes: int) -> None:
        self.memory_megabytes = memory_megabytes
        self.refusals: list[str] = []

    def enter(self) -> None:
        """Sets all limits, for the rest of the process's life."""
        limit_memory(self.memory_megabytes)
        set_limit(resource.RLIMIT_FSIZE, 0)
        set_limit(resource.RLIMIT_CORE, 0)
        set_limit(resource.RLIMIT_NPROC, 0)
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        is_import = (event == "open" and _reads(arguments)) or (event == "compile" and _is_file(arguments))
        if event not in _ALLOWED and not is_import:
            self.refusals.append(event)
            raise Refused(event)


def _reads(arguments: tuple[Any, ...]) -> bool:
    """Whether an `open` event is the import system reading a module."""
    path, mode, _ = arguments
    is_module = isinstance(path, str | bytes) and str(path).rstrip("'").endswith((".py", ".pyc"))
    return is_module and mode in ("r", "rb")


def _is_file(arguments: tuple[Any, ...]) -> bool:
    """Whether a `compile` event is the import system compiling a module whose bytecode is not cached."""
    name = arguments[1]
    return isinstance(name, str) and name.startswith("/") and name.endswith(".py")
