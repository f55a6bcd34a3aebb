"""Life of the process that runs one program."""

from __future__ import annotations

import ast
import builtins
import math
import os
import resource
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from bapo_lightning.environments.python.kernel import raise_walls
from bapo_lightning.environments.python.limits import CallLimits
from bapo_lightning.limits import MEGABYTE, limit_memory, set_limit
from bapo_lightning.orphans import end_with_parent

VALUE, ERROR = b"v", b"e"  # kinds of outcome: what the text is
_NAME = "<program>"
_PACKAGE = str(Path(__file__).resolve().parents[3])  # the folder of this package; no business of a program
_STDIN, _STDOUT, _STDERR, _OUTCOME = range(4)


def live(code: str, limits: CallLimits, scratch: Path, output: int, outcome: int) -> NoReturn:
    """Runs the program and ends. The pipe `output` takes what it prints, and `outcome` a kind and a text."""
    # Of what the program may replace, nothing but these is used behind it.
    write, end, size = os.write, os._exit, limits.output_bytes
    kind, text = ERROR, ""
    try:
        os.setsid()
        end_with_parent()
        _keep_descriptors(output, outcome)
        _forget_surroundings(scratch)
        enclose(limits, scratch)
        kind, text = _outcome(code, limits)
    except BaseException as error:  # nothing may go on behind this function, least of all the host's loop
        text = f"{type(error).__name__}: {error}"
    finally:
        with suppress(BaseException):
            write(_OUTCOME, (kind + text.encode(errors="replace"))[: size + 1])
        end(0)


def _keep_descriptors(output: int, outcome: int) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    kept = [os.dup(descriptor) for descriptor in (nothing, output, output, outcome)]
    for place, descriptor in enumerate(kept):
        os.dup2(descriptor, place)
    os.closerange(len(kept), os.sysconf("SC_OPEN_MAX"))


def _forget_surroundings(scratch: Path) -> None:
    os.chdir(scratch)
    os.environ.clear()
    os.environ |= {"HOME": str(scratch), "TMPDIR": str(scratch), "OPENBLAS_NUM_THREADS": "1"}
    tempfile.tempdir = str(scratch)
    sys.argv, sys.path = [_NAME], [path for path in sys.path if path != _PACKAGE]
    sys.stdin = open(_STDIN, closefd=False)  # noqa: SIM115
    sys.stdout = open(_STDOUT, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(_STDERR, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.modules["__main__"] = ModuleType("__main__")
    vars(sys.modules["__main__"])["__builtins__"] = builtins


def _outcome(code: str, limits: CallLimits) -> tuple[bytes, str]:
    kind, text = VALUE, ""
    try:
        text = _run(code, limits.shows_last_value)
    except SystemExit as error:
        if error.code not in (None, 0):
            kind, text = ERROR, f"SystemExit: {error.code}"
    except BaseException as error:
        kind, text = ERROR, _last_lines(error)
    with suppress(BaseException):
        sys.stdout.flush()
    with suppress(BaseException):
        sys.stderr.flush()
    return kind, text


def _run(code: str, shows_last_value: bool) -> str:
    names: dict[str, Any] = vars(sys.modules["__main__"])
    tree = ast.parse(code, _NAME)
    last = tree.body[-1] if shows_last_value and tree.body else None
    if not isinstance(last, ast.Expr):
        exec(compile(tree, _NAME, "exec"), names)
        return ""
    tree.body.pop()
    exec(compile(tree, _NAME, "exec"), names)
    value = eval(compile(ast.Expression(last.value), _NAME, "eval"), names)
    return "" if value is None else repr(value)


def _last_lines(error: BaseException) -> str:
    """The error as the end of a traceback shows it, and the line of the program that it came from."""
    with suppress(BaseException):
        text = "".join(traceback.format_exception_only(error)[-1:]).strip()
        frames = traceback.walk_tb(error.__traceback__)
        lines = [line for frame, line in frames if frame.f_code.co_filename == _NAME]
        return f"{text} (line {lines[-1]})" if lines else text
    return type(error).__name__


# What a computation does not need is taken away before the program begins. With walls=kernel the kernel
# refuses the rest (`kernel.py`). With walls=interpreter an audit hook of the interpreter does (PEP 578),
# which native code walks around: it stops accidents and simple attacks.

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
