"""A verifier worker: reads a gold answer and an answer from its connection, sends back a verdict, and so on;
and what the server prepares once for all workers.

A message in is JSON `[gold, answer, whether to refuse what is not evaluated, seconds]`. A message out is
`[status, reason, is_last]` with a status of `types.ScoreStatus`; after its last message the worker ends.
"""

from __future__ import annotations

import json
import resource
from functools import cache, partial
from multiprocessing.connection import Connection

from sympy.integrals import meijerint
from sympy.polys.monomials import MonomialOps

from bapo_lightning.limits import MEGABYTE
from bapo_lightning.rewards.math.algebra import equivalent
from bapo_lightning.rewards.math.size_limit import TooLarge
from bapo_lightning.rewards.math.workers.sandbox import Sandbox
from bapo_lightning.types import ScoreStatus

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
        return (
            ScoreStatus.CORRECT if equivalent(gold, answer, refuse_unevaluated) else ScoreStatus.WRONG
        ), ""
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
