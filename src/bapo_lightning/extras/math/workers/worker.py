"""A verifier worker: reads a gold answer and an answer from its connection, sends back a verdict, and so on;
and what the server prepares once for all workers.

A message in is JSON `[gold, answer, whether to refuse what is not evaluated, seconds]`. A message out is
`[status, reason, is_last]` with a status of `types.ScoreStatus`; after its last message the worker ends.
"""

from __future__ import annotations

import json
import resource
import sys
from functools import cache, partial
from multiprocessing.connection import Connection
from typing import Any

from sympy.integrals import meijerint
from sympy.polys.monomials import MonomialOps

from bapo_lightning.extras.math.algebra import equivalent
from bapo_lightning.extras.math.size_limit import TooLarge
from bapo_lightning.system.limits import MEGABYTE, limit_memory, set_limit
from bapo_lightning.types import ScoreStatus

_ALLOWED = {
    "import", "exec", "marshal.loads", "object.__getattr__", "object.__setattr__", "object.__delattr__",
    "sys._getframe", "os.listdir", "os.scandir", "builtins.id", "time.sleep", "sys.excepthook",
    "sys.unraisablehook", "resource.setrlimit", "array.__new__", "function.__new__",
    "cpython._PySys_ClearAuditHooks",
}  # fmt: skip


class Refused(Exception):
    """An operation that judging does not need was refused."""


class Sandbox:
    """Takes away from this process, before it reads the first answer, everything that judging does not need.

    The kernel limits memory, CPU time, file sizes and new processes (`setrlimit`). An audit hook of the
    interpreter (PEP 578) refuses the rest: compiling code from a string, so that `eval`, `exec`, sympy's
    string parser and `lambdify` fail wherever they are called, and opening files, starting processes and
    connecting. A hook does not confine hostile *code*; it is the second wall behind a reader that never turns
    text into code. `refusals` lists events refused since it was cleared.
    """

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


MAX_VARIABLES = 48  # of one polynomial; an answer with more ends as FAILED
_OPERATIONS = ("mul", "pow", "mulpow", "ldiv", "div", "lcm", "gcd")
_PAIRS = (
    (r"\frac{1}{2}", "0.5"), (r"\sqrt{8}", r"2\sqrt{2}"), (r"x^2-1", "(x-1)(x+1)"),
    (r"[1,2)\cup(3,\infty)", r"(3,\infty)\cup[1,2)"),
    (r"\begin{pmatrix}1 & 2\\ 3 & 4\end{pmatrix}", r"\begin{bmatrix}1 & 2\\ 3 & 5\end{bmatrix}"),
    ("x = 5", "5"), (r"y \le 3", r"3 \ge y"), ("(1, 2), (3, 4)", "(3,4),(1,2)"), (r"\{1,2,3\}", "3,2,1"),
    (r"\sin x + \log_2 8", r"3 + \sin(x)"), (r"e^{i\pi}+2", "1"), (r"\text{east}", "west"),
    (r"2n!", r"\binom{4}{2}"), (r"\frac{\pi}{4}", r"\arctan 1"), ("The value is $3$ or $4$.", "3, 4"),
    (r"28\%", "0.28"), (r"x \in \mathbb{R}", r"x \neq 3"), (r"\sum_{n=1}^{3} n", "6"),
    (r"\int_0^1 x dx", r"\frac{1}{2}"), (r"\pm 3", "3, -3"), (r"3x+4y=7", "y=1"),
    (r"\left| x \right|", r"\lfloor x \rfloor"), (r"\sqrt[3]{2}", "2^{1/3}"), ("12_3", "11_4"),
)  # fmt: skip


def serve(connection: Connection, memory_megabytes: int) -> None:
    """Judges until the other end closes. A worker that used most of its memory ends after its verdict."""
    sandbox = Sandbox(memory_megabytes)
    sandbox.enter()
    memory_at_start = peak_memory()
    while True:
        try:
            gold, answer, refuse_unevaluated, seconds = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            return
        limit_cpu_seconds(seconds)
        sandbox.refusals.clear()
        status, reason = judge(gold, answer, refuse_unevaluated)
        swollen = peak_memory() - memory_at_start > memory_megabytes * MEGABYTE // 2
        if status is ScoreStatus.WRONG and (sandbox.refusals or swollen):
            # The libraries take an exception for "not equal", so that this verdict means nothing.
            status, reason = ScoreStatus.FAILED, ", ".join(sorted(set(sandbox.refusals))) or "memory"
        connection.send_bytes(json.dumps([status, reason, swollen]).encode())
        if swollen:
            return


def limit_cpu_seconds(more: float) -> None:
    """Lets the kernel end this process after `more` further seconds of CPU time, if the server is gone."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime + more) + 2, hard))


def peak_memory() -> int:
    """Largest resident size of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def judge(gold: str, answer: str, refuse_unevaluated: bool = True) -> tuple[ScoreStatus, str]:
    """Returns the status of the answer, and the reason if judging failed."""
    try:
        is_right = equivalent(gold, answer, refuse_unevaluated)
        return ScoreStatus.CORRECT if is_right else ScoreStatus.WRONG, ""
    except TooLarge as error:
        return ScoreStatus.FAILED, str(error)
    except (RecursionError, MemoryError) as error:
        return ScoreStatus.FAILED, type(error).__name__
    except Exception as error:  # whatever the libraries raise on text that a policy made up
        return ScoreStatus.FAILED, f"{type(error).__name__}: {error}"[:200]


def warm_up() -> None:
    """Loads, generates and fills everything that later verdicts share.

    sympy compiles small functions for polynomials in n variables (from a template that holds nothing but
    indices) and reads a table of integrals through its string parser. A worker may compile nothing, so that
    both must be done before it is forked.
    """
    # sympy's own cache forgets the functions that it generates; this one, by their code, does not.
    MonomialOps._build = staticmethod(cache(partial(MonomialOps._build, None)))
    for num_variables in range(1, MAX_VARIABLES + 1):
        for operation in _OPERATIONS:
            getattr(MonomialOps(num_variables), operation)()
    meijerint._lookup_table = {}
    meijerint._create_lookup_table(meijerint._lookup_table)
    for gold, answer in _PAIRS:
        judge(gold, answer)
        judge(answer, gold)
