"""Life of the process that runs one program."""

from __future__ import annotations

import ast
import builtins
import json
import math
import os
import resource
import sys
import tempfile
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from bapo_lightning.extras.python.kernel import raise_walls
from bapo_lightning.system.limits import MEGABYTE, limit_memory, set_limit
from bapo_lightning.system.orphans import end_with_parent

VALUE, ERROR = b"v", b"e"  # kinds of outcome: the meaning of the text
_NAME = "<program>"
_PACKAGE = str(Path(__file__).resolve().parents[3])  # folder of this package, not for a program's sys.path
_STDIN, _STDOUT, _STDERR, _OUTCOME = range(4)


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Limits of one call, and its output."""

    seconds: float  # of wall-clock time, and about as many of CPU time
    memory_megabytes: int  # of address space in addition to the interpreter's
    file_megabytes: int  # of one file, and of the scratch folder
    output_bytes: int  # kept of a program's output
    shows_last_value: bool  # if nothing was printed, the value of the last expression is
    walls: str  # "kernel" or "none"


def live(limits: CallLimits, zygote: int, scratch: Path, source: int, output: int, outcome: int) -> NoReturn:
    """Runs the program and ends, at the latest with its parent, process `zygote`. The file `source` has the
    code in JSON, the pipe `output` receives what it prints, and `outcome` a kind and a text.
    """
    # The program may replace anything else: only these are used after it.
    write, end, size = os.write, os._exit, limits.output_bytes
    kind, text = ERROR, ""
    try:
        os.setsid()
        end_with_parent(zygote)
        with open(source, "rb") as file:
            code = json.loads(file.read())
        _keep_descriptors(output, outcome)
        _forget_surroundings(scratch)
        enclose(limits, scratch)
        kind, text = _outcome(code, limits)
    except BaseException as error:  # nothing may continue after this function, least of all the zygote's loop
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
    """The error as at the end of a traceback, and the line of the program that caused it."""
    with suppress(BaseException):
        text = "".join(traceback.format_exception_only(error)[-1:]).strip()
        frames = traceback.walk_tb(error.__traceback__)
        lines = [line for frame, line in frames if frame.f_code.co_filename == _NAME]
        return f"{text} (line {lines[-1]})" if lines else text
    return type(error).__name__


# Everything that a computation does not need is removed before the program starts; with walls=kernel the
# kernel refuses the rest (`kernel.py`).

_OPEN_FILES = 16


def enclose(limits: CallLimits, scratch: Path) -> None:
    """Limits this process for the rest of its life, and walls it in if there are walls: then it can only
    write to its own descriptors and to `scratch`. Raises OSError if the kernel refuses.
    """
    limit_memory(limits.memory_megabytes)
    set_limit(resource.RLIMIT_CPU, math.ceil(limits.seconds) + 1)  # in case the host is gone
    set_limit(resource.RLIMIT_FSIZE, limits.file_megabytes * MEGABYTE)
    set_limit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    set_limit(resource.RLIMIT_NPROC, 0)
    set_limit(resource.RLIMIT_CORE, 1)  # byte: less than a dump, and unlike 0 it starts no collector of dumps
    if limits.walls == "kernel":
        raise_walls(_libraries(), scratch)


def _libraries() -> list[Path]:
    system = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo")
    devices = ("/etc/ld.so.cache", "/dev/null", "/dev/zero", "/dev/urandom")
    return [Path(path) for path in (*filter(None, sys.path), f"{sys.base_prefix}/lib", *system, *devices)]
