"""From LaTeX to sympy without sympy's string parser. Runs only in workers.

`latex2sympy2_extended` reads LaTeX with a grammar and builds the expression from the tree. Only the digits of
numbers, `gcd` and `lcm` pass through `sympify` or `nsimplify`, which evaluate text as Python; those steps are
replaced here. Operations that would compute something large while reading (binomials, matrices of zeros,
eigenvalues) are left unevaluated or refused. Operations that an answer leaves open stay visible in the
expression (`closed_form` looks for them): divisions without remainder, determinants, products of numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import reduce
from types import SimpleNamespace
from typing import Any

import sympy
from antlr4 import CommonTokenStream, InputStream
from antlr4.atn.PredictionMode import PredictionMode
from latex2sympy2_extended.antlr_parser import PSLexer, PSParser
from latex2sympy2_extended.latex2sympy2 import _Latex2Sympy, comma_number_regex

from bapo_lightning.extras.math.size_limit import MAX_DIGITS, MAX_FLOAT_EXPONENT, TooLarge, check_size

FLOAT_DIGITS = 30  # of a decimal, at least: it is compared as written

_INTEGER = re.compile(r"[-+]?[0-9]+")
_DECIMAL = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE]([-+]?[0-9]+))?")
# Matrix commands that compute while the text is read. No answer of a public data set has one.
_REFUSED_OPERATORS = {
    "eye", "rank", "trace", "tr", "rref", "nullspace", "norm", "cols", "rows", "eig", "eigen", "diagonalize",
    "eigenvals", "eigenvalues", "eigenvects", "eigenvectors", "svd", "SVD", "zeros", "ones", "diag", "hstack",
    "vstack", "orth", "ortho", "orthogonal", "orthogonalize",
}  # fmt: skip


class Unreadable(Exception):
    """The text is not a LaTeX formula."""


def exact_number(text: str) -> Any:
    """Returns the sympy number that the digits in `text` write. Raises Unreadable or TooLarge."""
    if len(text) > MAX_DIGITS:
        raise TooLarge(f"a number of {len(text)} characters")
    if _INTEGER.fullmatch(text):
        return sympy.Integer(int(text))
    match = _DECIMAL.fullmatch(text)
    if match is None:
        raise Unreadable(f"{text!r} is not a number")
    whole, _, decimals = text.partition(".")
    if not decimals.strip("0") and _INTEGER.fullmatch(whole):
        return sympy.Integer(int(whole))  # 1.0 is exactly 1
    if match.group(1) is not None and abs(int(match.group(1))) > MAX_FLOAT_EXPONENT:
        raise TooLarge(f"the number {text}")
    return sympy.Float(text, max(FLOAT_DIGITS, len(text)))


class Converter(_Latex2Sympy):
    """The library's tree walk, with digits read by `exact_number` and ANTLR's fast prediction tried first."""

    def parse(self, latex: str) -> Any:
        """Returns the expression that `latex` writes; the library's exceptions pass if it cannot read it."""
        if comma_number_regex.match(latex):
            # 0,111 is never grouped: that comma is a decimal point.
            return exact_number(latex.strip().replace(",", "." if latex.strip().startswith("0") else ""))
        return super().parse(latex)

    def create_parser(self, latex: str) -> Any:
        """Returns a parser that has read `latex`: by SLL prediction or, if that fails, by the complete LL."""
        parser = self._parser(latex, PredictionMode.SLL)
        try:
            tree = parser.math()
        except Exception:  # the library's listener raises plain exceptions: SLL may refuse what LL accepts
            tree = self._parser(latex, PredictionMode.LL).math()
        return SimpleNamespace(math=lambda: tree)

    def parse_number(self, text: str) -> Any:
        """Returns the number that digits write, with or without commas between them."""
        return exact_number(text.replace(",", "").replace(" ", ""))

    def convert_postfix_list(self, arr: list[Any], i: int = 0) -> Any:
        r"""Reads factors in a row. `6(7)` is a product, `6\frac{1}{2}` the library's mixed number."""
        if i == len(arr) - 1:
            return super().convert_postfix_list(arr, i)
        first = self.convert_postfix(arr[i])
        rest = self.convert_postfix_list(arr, i + 1)
        if isinstance(first, list):
            return sympy.Derivative(rest, first[0])
        if getattr(first, "is_Matrix", False) or getattr(rest, "is_Matrix", False):
            return self.mat_mul_flat(first, rest)
        is_fraction = isinstance(rest, sympy.Rational) and rest.p > 0 and rest.q > 1
        if isinstance(first, sympy.Integer) and is_fraction and arr[i + 1].getText().startswith("\\frac"):
            return sympy.Rational(first * rest.q + (rest.p if first >= 0 else -rest.p), rest.q)
        return self.mul_flat(first, rest)

    def convert_frac(self, frac: Any) -> Any:
        """Keeps a division without remainder unevaluated."""
        value = super().convert_frac(frac)
        return self._undivided(value, frac.lower.getText(), self.convert_expr, frac.lower)

    def convert_mp(self, mp: Any) -> Any:
        """Keeps a division without remainder unevaluated."""
        value = super().convert_mp(mp)
        if not (mp.DIV() or mp.CMD_DIV() or mp.COLON()):
            return value
        lower = (mp.mp if hasattr(mp, "mp") else mp.mp_nofunc)(1)
        return self._undivided(value, lower.getText(), self.convert_mp, lower)

    def convert_comp(self, comp: Any) -> Any:
        """Keeps a determinant visible."""
        value = super().convert_comp(comp)
        return sympy.UnevaluatedExpr(value) if getattr(comp, "det", lambda: None)() else value

    def convert_interval(self, expr: Any) -> Any:
        """Reads `[5, 5]` as a pair: it is not a way to write 5. Nor is `[6, 4]` the pair `(6, 4)`."""
        interval = super().convert_interval(expr)
        text = expr.getText()
        if isinstance(interval, sympy.Tuple) and text.startswith("[") and text.endswith("]"):
            raise Unreadable("an interval that ends before it starts")
        is_pair = isinstance(interval, sympy.FiniteSet)
        return sympy.Tuple(*interval.args * 2) if is_pair else interval

    def convert_binom(self, binom: Any) -> Any:
        """Leaves a binomial coefficient unevaluated."""
        return sympy.binomial(self.convert_expr(binom.upper), self.convert_expr(binom.lower), evaluate=False)

    def convert_func(self, func: Any) -> Any:
        """Refuses matrix commands, and leaves the gamma function unevaluated."""
        head = func.func_normal_single_arg() or func.func_normal_multi_arg()
        if head is not None:
            name = head.start.text[1:]
            if name == "operatorname" and head.func_operator_name.getText() in _REFUSED_OPERATORS:
                raise Unreadable("a matrix command")
            if name == "det":
                return sympy.UnevaluatedExpr(super().convert_func(func))
            if name in ("Gamma", "gamma") and func.func_normal_single_arg():
                argument = func.func_single_arg() or func.func_single_arg_noparens()
                return sympy.gamma(self.convert_func_arg(argument), evaluate=False)
        return super().convert_func(func)

    def handle_gcd_lcm(self, f: str, args: list[Any]) -> Any:
        """Computes gcd or lcm without `nsimplify`, and only for whole numbers."""
        for argument in args:
            check_size(argument)
        values = [argument.doit() if isinstance(argument, sympy.Basic) else argument for argument in args]
        if not all(isinstance(value, sympy.Integer) for value in values):
            raise Unreadable(f"{f} of something that is not a whole number")
        return sympy.UnevaluatedExpr(reduce(sympy.igcd if f == "gcd" else sympy.ilcm, values))

    @staticmethod
    def _undivided(value: Any, lower_text: str, convert: Callable[[Any], Any], lower: Any) -> Any:
        """Returns a quotient of whole numbers that is a whole number, as a product with a power."""
        if not isinstance(value, sympy.Integer) or lower_text == "1":
            return value
        divisor = convert(lower)
        inverse = sympy.Pow(divisor, -1, evaluate=False)
        return sympy.Mul(value * divisor, inverse, evaluate=False)

    def _parser(self, latex: str, mode: Any) -> Any:
        lexer = PSLexer(InputStream(latex))
        parser = PSParser(CommonTokenStream(lexer))
        for recognizer in (lexer, parser):
            recognizer.removeErrorListeners()
            recognizer.addErrorListener(self.MathErrorListener(latex))
        parser._interp.predictionMode = mode
        return parser
