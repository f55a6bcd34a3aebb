"""Life of the process that runs one program."""

from __future__ import annotations

import ast
import builtins
import os
import sys
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from bapo_lightning.environments.python.limits import CallLimits
from bapo_lightning.environments.python.walls import enclose
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
