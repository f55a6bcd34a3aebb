"""Work that the server does once for all workers: code that sympy generates, and first uses of everything.

sympy compiles small functions for polynomials in n variables (from a template that holds nothing but indices)
and reads a table of integrals through its string parser. A worker may compile nothing, so that both must be
done before it is forked.
"""

from __future__ import annotations

from functools import cache, partial

from sympy.integrals import meijerint
from sympy.polys.monomials import MonomialOps

from bapo_lightning.rewards.math.workers import worker

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


def warm_up() -> None:
    """Loads, generates and fills everything that later verdicts share."""
    # sympy's own cache forgets the functions that it generates; this one, by their code, does not.
    MonomialOps._build = staticmethod(cache(partial(MonomialOps._build, None)))
    for num_variables in range(1, MAX_VARIABLES + 1):
        for operation in _OPERATIONS:
            getattr(MonomialOps(num_variables), operation)()
    meijerint._lookup_table = {}
    meijerint._create_lookup_table(meijerint._lookup_table)
    for gold, answer in _PAIRS:
        worker.judge(gold, answer)
        worker.judge(answer, gold)
