"""Equivalence of answers by math-verify and sympy, without evaluating strings.

Runs only in workers, which may be killed at any moment.
"""

from __future__ import annotations

import itertools
import logging
import re
import unicodedata
from functools import lru_cache
from typing import Any

import math_verify.parser as mv_parser
import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, convert_to_pct
from latex2sympy2_extended.math_normalization import NormalizationConfig, normalize_latex
from math_verify.grader import should_treat_as_complex, verify
from sympy.core.alphabets import greeks

from bapo_lightning.extras.math.closed_form import is_evaluated
from bapo_lightning.extras.math.conditions import (
    Joined,
    as_set,
    in_known_notation,
    same_conditions,
    set_built,
    split_at_words,
)
from bapo_lightning.extras.math.converter import FLOAT_DIGITS, Converter, Unreadable, exact_number
from bapo_lightning.extras.math.notation import clean
from bapo_lightning.extras.math.quick import read_number
from bapo_lightning.extras.math.relations import (
    chain_of,
    holds,
    in_one_order,
    in_one_shape,
    with_imaginary_unit,
    with_split_logarithms,
)
from bapo_lightning.extras.math.sentences import has_words, is_changed, is_prose
from bapo_lightning.extras.math.size_limit import TooLarge, check_nesting, check_size
from bapo_lightning.extras.math.symbols import plain_characters
from bapo_lightning.extras.math.units import TEXT_UNIT
from bapo_lightning.rewards.decoration import undecorated

# `quick` removes units, because it distinguishes 6m from 6 metres; `extract` removes boxes.
NORMALIZATION = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
)
_CASE_COUNTS = ConversionConfig(lowercase_symbols=False)  # R - r is not 0
_UNIT_AT_THE_END = re.compile(rf"(?<=[0-9}}\s)A-Za-z]){TEXT_UNIT}$")
_PYTHON_POWER = re.compile(r"\*\*")
_PLUS_SIGN = re.compile(r"(?:^|(?<=[A-Za-z:=]\s)|(?<=[:=]))\+(?=[0-9.])")
_ABOUT = re.compile(r"^\s*\\approx(?![a-zA-Z])")
_POWER_OF_TEN = re.compile(r"(?<![A-Za-z\\])([0-9]\.?)[eE]([-+]?[0-9]{1,9})(?![0-9.])")  # 1.5e-3
_POINT_ALONE = re.compile(r"(?<=[0-9])\.(?![0-9.])")
_IMAGINARY = re.compile(r"(?<=[0-9])i(?![a-zA-Z])")
_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Mn", "Me"}
_DEGREES = re.compile(r"\s*\^\s*\{?\s*\\circ\s*\}?")
_NO_PROSE = re.compile(r"""[<>'"#@&?_|]""")  # text after one of these belongs to the number
_PRIME = re.compile(r"(?<=[A-Za-z])\s*(?:\^\s*(?:\{\s*)?)?('{1,3})\s*(?:(?<=\s)\})?")
_NATURAL_LOGARITHM = re.compile(r"\\log\s*_\s*\{?\s*e\s*\}?")
_SHORT_ROOT = re.compile(r"(\\sqrt\s*\[[^\[\]]*\])\s*([0-9A-Za-z])")
_POINT = re.compile(r"(?P<name>[A-Z](?:_?[0-9]|')?\s*:?)?\s*(?P<pair>\([^()]+,[^()]+\))")
_EQUALS = re.compile(r"(?<![\\<>!])=")

logging.getLogger("math_verify").setLevel(logging.CRITICAL)
mv_parser.TIMEOUT_WARNING_SHOWN = True  # the deadline is the pool's


def equivalent(gold: str, answer: str, refuse_unevaluated: bool = True) -> bool:
    """Whether `answer` equals `gold`, readable or not. Raises TooLarge if comparing them would never end.

    `refuse_unevaluated`: an answer with operations that are the problem rather than its answer is not equal
    (see `closed_form`).
    """
    golds, answers = (readings(text) for text in _without_names(gold, answer))
    if any(itertools.starmap(same_tree, itertools.product(golds, answers))):
        return True
    for expression in (*golds, *answers):
        for part in expression.parts if isinstance(expression, Joined) else (expression,):
            check_size(part)
    return any(_equal(*pair, refuse_unevaluated) for pair in itertools.product(golds, filter(holds, answers)))


def _equal(gold: Any, answer: Any, refuse_unevaluated: bool) -> bool:
    conditions = same_conditions(gold, answer, _verified)
    if conditions is not None:
        return conditions
    gold, answer = in_one_order(*in_one_shape(gold, answer))
    if refuse_unevaluated and not is_evaluated(gold, answer):
        return False
    symbols = [side.name for side in (gold, answer) if isinstance(side, sympy.Symbol)]
    if len(symbols) == 2 and symbols[0].lower() in greeks:
        return symbols[0] == symbols[1]  # Theta is not theta
    if _verified(gold, answer):
        return True
    for rewritten in (with_imaginary_unit, with_split_logarithms):
        sides = rewritten(gold), rewritten(answer)
        if sides != (gold, answer) and _verified(*sides):
            return True
    return False


def _without_names(gold: str, answer: str) -> tuple[str, str]:
    """Returns both, without the name of a point if only one of them names it: `P(1, 2)` and `(1, 2)`."""
    one, other = (_POINT.fullmatch(clean(side)) for side in (gold, answer))
    if one is None or other is None or (one["name"] and other["name"]):
        return gold, answer
    return one["pair"], other["pair"]


def _verified(gold: Any, answer: Any) -> bool:
    return bool(verify(gold, answer, timeout_seconds=None, allow_set_relation_comp=True))


def readings(text: str) -> tuple[Any, ...]:
    """Returns the expressions that `text` may mean: one formula, or a text that ends in some; maybe none."""
    text = plain_characters(text)
    if is_prose(text):
        return tuple(read_in_prose(text))
    if any(
        unicodedata.category(character) in _INVISIBLE
        for character in undecorated(text)
        if character not in "\n\t\r"
    ):
        return ()  # a 4, a zero-width space and another 4 are not 4
    cleaned = clean(text)
    built = set_built(cleaned)
    if built is not None and (solutions := as_set(_read_statement(built))) is not None:
        return (solutions,)
    expression = _read_statement(cleaned)
    if expression is not None:
        return (expression,)
    # `5 | 6` and `\neq 5` are formulas that cannot be read; only words may stand around a number.
    may_be_prose = has_words(text) and not _NO_PROSE.search(text) and not is_changed(cleaned)
    return tuple(read_in_prose(text)) if may_be_prose else ()


def _read_statement(text: str) -> Any:
    """Returns the expression, or the conditions joined by words, in cleaned `text`."""
    joined = split_at_words(text)
    if joined is not None:
        parts = [read_latex(clean(part)) for part in joined.parts]
        if None not in parts and (combined := Joined(joined.word, tuple(parts))).is_one:
            return combined
    return read_latex(text)


@lru_cache(maxsize=512)
def read_latex(text: str) -> Any:
    """Returns the expression in cleaned `text`, None if it is not readable. Raises TooLarge."""
    number = _number(text)
    if number is not None:
        return number
    check_nesting(text)
    text = _PRIME.sub(lambda primes: f"_{{{'p' * len(primes[1])}}}", text.replace("^{'}", "'"))
    if "'" in text or '"' in text:  # minutes, inches
        return None
    for candidate in _spellings(text):
        latex = normalize_latex(candidate, NORMALIZATION)
        expression = _converted(latex)
        if expression is None and not {",", ";"} & set(latex):
            expression = chain_of([_side(side) for side in _EQUALS.split(latex)])
        if expression is not None:
            return expression
    return None


def _number(text: str) -> Any:
    """Returns the number that cleaned `text` is; None for anything else, or a division without remainder."""
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
        expression = Converter(is_real=not is_complex, config=_CASE_COUNTS).parse(_IMAGINARY.sub(" i", latex))
    except TooLarge:
        raise
    except Exception:  # the library raises many types for unreadable text, up to plain Exception
        return None
    return None if computes_with_infinity(expression) else expression


def computes_with_infinity(expression: Any) -> bool:
    r"""Whether infinity is an operand of some arithmetic, as in `1/\infty`, which sympy takes for 0."""
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
    text = _SHORT_ROOT.sub(r"\1{\2}", _NATURAL_LOGARITHM.sub(r"\\ln ", text))
    text = in_known_notation(text)
    text = _ABOUT.sub("", _PYTHON_POWER.sub("^", _DEGREES.sub("", text)))
    left, equals, right = text.rpartition("=")
    if "," in right and read_number(right.strip()) is not None:
        text = left + equals + right.replace(",", "")  # x = 15,450
    text = _POWER_OF_TEN.sub(r"\1 \\cdot 10^{\2}", _POINT_ALONE.sub("", text))
    return list(dict.fromkeys((_UNIT_AT_THE_END.sub("", text) or text, text)))


def _read_plain(match: re.Match[str]) -> tuple[Any, str]:
    """Replaces math-verify's `extract_expr`, which passes the text to sympy's string parser."""
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
