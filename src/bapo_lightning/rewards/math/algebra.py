"""Equivalence of answers by math-verify and sympy, without evaluating strings.

Runs in workers only, which may be killed at any moment.
"""

from __future__ import annotations

import itertools
import logging
import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache, reduce
from types import SimpleNamespace
from typing import Any

import math_verify.parser as mv_parser
import sympy
from antlr4 import CommonTokenStream, InputStream
from antlr4.atn.PredictionMode import PredictionMode
from latex2sympy2_extended.antlr_parser import PSLexer, PSParser
from latex2sympy2_extended.latex2sympy2 import _Latex2Sympy, comma_number_regex, convert_to_pct
from latex2sympy2_extended.math_normalization import NormalizationConfig, normalize_latex
from math_verify.grader import should_treat_as_complex, verify

from bapo_lightning.rewards.math.closed_form import is_evaluated
from bapo_lightning.rewards.math.notation import clean
from bapo_lightning.rewards.math.quick import read_number
from bapo_lightning.rewards.math.relations import chain_of, holds, in_one_order
from bapo_lightning.rewards.math.sentences import has_words, is_prose
from bapo_lightning.rewards.math.size_limit import (
    MAX_DIGITS,
    MAX_FLOAT_EXPONENT,
    TooLarge,
    check_nesting,
    check_size,
)
from bapo_lightning.rewards.math.symbols import plain_characters
from bapo_lightning.rewards.math.units import TEXT_UNIT

# `quick` removes units, because it distinguishes 6m from 6 metres; `extract` removes boxes.
NORMALIZATION = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
)
_UNIT_AT_THE_END = re.compile(rf"(?<=[0-9}}\s]){TEXT_UNIT}$")
_PYTHON_POWER = re.compile(r"\*\*")
_PLUS_SIGN = re.compile(r"(?:^|(?<=[A-Za-z:=]\s)|(?<=[:=]))\+(?=[0-9.])")
_ABOUT = re.compile(r"^\s*\\approx(?![a-zA-Z])")
_POWER_OF_TEN = re.compile(r"(?<![A-Za-z\\])([0-9]\.?)[eE]([-+]?[0-9]{1,9})(?![0-9.])")  # 1.5e-3
_POINT_ALONE = re.compile(r"(?<=[0-9])\.(?![0-9.])")
_IMAGINARY = re.compile(r"(?<=[0-9])i(?![a-zA-Z])")
_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Mn", "Me"}
_DEGREES = re.compile(r"\s*\^\s*\{?\s*\\circ\s*\}?")
_EQUALS = re.compile(r"(?<![\\<>!])=")

logging.getLogger("math_verify").setLevel(logging.CRITICAL)
mv_parser.TIMEOUT_WARNING_SHOWN = True  # the deadline is the pool's


def equivalent(gold: str, answer: str, refuse_unevaluated: bool = True) -> bool:
    """Whether `answer` equals `gold`, readable or not. Raises TooLarge if comparing them would never end.

    `refuse_unevaluated`: an answer with operations that are the problem rather than its answer is not equal
    (see `closed_form`).
    """
    golds, answers = readings(gold), readings(answer)
    if any(itertools.starmap(same_tree, itertools.product(golds, answers))):
        return True
    for expression in (*golds, *answers):
        check_size(expression)
    answers = tuple(filter(holds, answers))
    return any(
        (not refuse_unevaluated or is_evaluated(*pair))
        and verify(*in_one_order(*pair), timeout_seconds=None, allow_set_relation_comp=True)
        for pair in itertools.product(golds, answers)
    )


def readings(text: str) -> tuple[Any, ...]:
    """Returns the expressions that `text` may mean: it is one formula, or a text that ends in one or more.

    Empty if nothing is readable.
    """
    text = plain_characters(text)
    if is_prose(text):
        return tuple(read_in_prose(text))
    if any(unicodedata.category(character) in _INVISIBLE for character in text if character not in "\n\t\r"):
        return ()  # a 4, a zero-width space and another 4 are not 4
    expression = read_latex(clean(text))
    if expression is not None:
        return (expression,)
    # `5 | 6` and `\neq 5` are formulas that cannot be read; only words may stand around a number.
    return tuple(read_in_prose(text)) if has_words(text) else ()


@lru_cache(maxsize=512)
def read_latex(text: str) -> Any:
    """Returns the expression that cleaned `text` writes, None if it is not readable. Raises TooLarge."""
    number = _number(text)
    if number is not None:
        return number
    check_nesting(text)
    for candidate in _spellings(text):
        latex = normalize_latex(candidate, NORMALIZATION)
        expression = _converted(latex)
        if expression is None and not {",", ";"} & set(latex):
            expression = chain_of([_side(side) for side in _EQUALS.split(latex)])
        if expression is not None:
            return expression
    return None


def _number(text: str) -> Any:
    """Returns the number that cleaned `text` is; None if it is none, or a division that comes out whole."""
    number = read_number(text)
    if number is None or number.is_division:
        return None
    value = sympy.Rational(number.value.numerator, number.value.denominator)
    value = sympy.Float(value, FLOAT_DIGITS) if number.is_decimal else value
    return convert_to_pct(value) if number.is_percent else value


def _side(latex: str) -> Any:
    number = _number(clean(latex))
    return _converted(latex) if number is None else number


def _converted(latex: str) -> Any:
    try:
        is_complex = should_treat_as_complex(latex) or _IMAGINARY.search(latex)
        expression = Converter(is_real=not is_complex).parse(_IMAGINARY.sub(" i", latex))
    except TooLarge:
        raise
    except Exception:  # the library raises many types for unreadable text, up to plain Exception
        return None
    return None if computes_with_infinity(expression) else expression


def computes_with_infinity(expression: Any) -> bool:
    r"""Whether infinity is a part of some arithmetic, as in `1/\infty`, which sympy takes for 0."""
    if not isinstance(expression, sympy.Basic):
        return False
    for node in sympy.preorder_traversal(expression):
        is_operation = isinstance(node, sympy.Add | sympy.Mul | sympy.Pow | sympy.Function)
        is_sign = isinstance(node, sympy.Mul) and len(node.args) == 2 and sympy.S.NegativeOne in node.args
        if is_operation and not is_sign and {sympy.oo, -sympy.oo} & set(node.args):
            return True
    return False


def read_in_prose(text: str) -> list[Any]:
    """Returns the last formula or number in a text, found by math-verify's patterns."""
    targets = mv_parser.get_extraction_regexes(
        [mv_parser.LatexExtractionConfig(), mv_parser.ExprExtractionConfig()]
    )
    return mv_parser.extract_target_from_pred(_PLUS_SIGN.sub("", text), targets, fallback_mode="no_fallback")


def same_tree(left: Any, right: Any) -> bool:
    """Whether both are written the same way, so that nothing has to be computed."""
    return (
        type(left) is type(right)
        and isinstance(left, sympy.Basic)
        and left == right
        and not left.has(sympy.nan, sympy.zoo)
    )


def _spellings(text: str) -> list[str]:
    text = _ABOUT.sub("", _PYTHON_POWER.sub("^", _DEGREES.sub("", text)))
    left, equals, right = text.rpartition("=")
    if "," in right and read_number(right.strip()) is not None:
        text = left + equals + right.replace(",", "")  # x = 15,450
    text = _POWER_OF_TEN.sub(r"\1 \\cdot 10^{\2}", _POINT_ALONE.sub("", text))
    return list(dict.fromkeys((_UNIT_AT_THE_END.sub("", text) or text, text)))


def _read_plain(match: re.Match[str]) -> tuple[Any, str]:
    """Replaces math-verify's `extract_expr`, which hands the text to sympy's string parser."""
    groups = match.groupdict()
    digits = "".join(
        value for name, value in groups.items() if name.startswith(("integer", "decimal")) and value
    )
    if not digits:
        expression = groups.get("expr") or ""
        return read_latex(clean(expression.replace("\n", " "))), expression
    whole = next((value for name, value in groups.items() if name.startswith("integer") and value), "0")
    decimal = next((value for name, value in groups.items() if name.startswith("decimal") and value), "")
    number = exact_number(whole.replace(",", "").replace(" ", "") + decimal.replace(",", "."))
    return (convert_to_pct(number) if groups.get("percent") else number), digits


def _read_formula(latex: str) -> Any:
    """Replaces math-verify's `parse_latex_cached`."""
    expression = read_latex(clean(latex))
    if expression is None:
        raise Unreadable(latex)
    return expression


for _name, _replacement in {"extract_expr": _read_plain, "parse_latex_cached": _read_formula}.items():
    if not hasattr(mv_parser, _name):
        raise ImportError(
            f"math-verify has no {_name} any more; install the version that pyproject.toml names"
        )
    setattr(mv_parser, _name, _replacement)


# From LaTeX to sympy without sympy's string parser. `latex2sympy2_extended` reads LaTeX with a grammar and
# builds the expression from the tree. Only the digits of numbers, `gcd` and `lcm` pass through `sympify` or
# `nsimplify`, which evaluate text as Python; those steps are replaced here. Operations that would compute
# something large while reading (binomials, matrices of zeros, eigenvalues) are left unevaluated or refused.
# What an answer leaves to compute stays visible in the expression (`closed_form` looks for it): divisions
# that come out whole, determinants, products of numbers.

FLOAT_DIGITS = 30  # of a decimal, at least: it is compared as it is written

_INTEGER = re.compile(r"[-+]?[0-9]+")
_DECIMAL = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE]([-+]?[0-9]+))?")
# Matrix commands that compute while the text is read. No answer of a public data set has one.
_REFUSED_OPERATORS = {
    "eye", "rank", "trace", "tr", "rref", "nullspace", "norm", "cols", "rows", "eig", "eigen", "diagonalize",
    "eigenvals", "eigenvalues", "eigenvects", "eigenvectors", "svd", "SVD", "zeros", "ones", "diag", "hstack",
    "vstack", "orth", "ortho", "orthogonal", "orthogonalize",
}  # fmt: skip


class Unreadable(Exception):
    """The text is not LaTeX of a formula."""


def exact_number(text: str) -> Any:
    """Returns the sympy number that the digits in `text` write. Raises Unreadable or TooLarge."""
    if len(text) > MAX_DIGITS:
        raise TooLarge(f"a number of {len(text)} characters")
    if _INTEGER.fullmatch(text):
        return sympy.Integer(int(text))
    match = _DECIMAL.fullmatch(text)
    if match is None:
        raise Unreadable(f"{text!r} is no number")
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
            # Nobody groups 0,111: that comma is a decimal point.
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
        """Keeps a division that comes out whole as it is."""
        value = super().convert_frac(frac)
        return self._undivided(value, frac.lower.getText(), self.convert_expr, frac.lower)

    def convert_mp(self, mp: Any) -> Any:
        """Keeps a division that comes out whole as it is."""
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
        """Reads `[5, 5]` as a pair: it is no way to write 5."""
        interval = super().convert_interval(expr)
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
        """Computes gcd or lcm without `nsimplify`, and only of whole numbers."""
        for argument in args:
            check_size(argument)
        values = [argument.doit() if isinstance(argument, sympy.Basic) else argument for argument in args]
        if not all(isinstance(value, sympy.Integer) for value in values):
            raise Unreadable(f"{f} of something that is no whole number")
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
