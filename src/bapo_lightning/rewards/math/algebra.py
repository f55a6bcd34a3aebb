"""Equivalence of answers by math-verify and sympy, without evaluating strings.

Runs in workers only, which may be killed at any moment.
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
from latex2sympy2_extended.latex2sympy2 import convert_to_pct
from latex2sympy2_extended.math_normalization import NormalizationConfig, normalize_latex
from math_verify.grader import should_treat_as_complex, verify

from bapo_lightning.rewards.math.converter import Converter, Unreadable, exact_number
from bapo_lightning.rewards.math.quick import clean
from bapo_lightning.rewards.math.size_limit import TooLarge, check_nesting, check_size

# `quick` removes units, because it distinguishes 6m from 6 metres; `extract` removes boxes.
NORMALIZATION = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
)
_TEXT_UNIT = re.compile(
    r"(?<=[0-9}\s])\s*\\(?:text|textbf|textit|textnormal|textrm|mathrm|mbox)\s*"
    r"\{(?!\s*(?:and|or)\s*\})[^{}0-9]*\}(?:\^\{?[0-9]\}?)?$"
)
_PYTHON_POWER = re.compile(r"\*\*")
_WORDS = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{3,}")
_SENTENCE_WORD = re.compile(r"answers?|the|therefore|thus|hence|then|results?|values?|solutions?|are")
_FOREIGN_LETTERS = 6  # beyond the Greek ones that a formula may have
_PLUS_SIGN = re.compile(r"(?:^|(?<=[A-Za-z:=]\s)|(?<=[:=]))\+(?=[0-9.])")
_MATH_WORD = re.compile(r"sin|cos|tan|cot|sec|csc|log|exp|sqrt|and|max|min|mod|det|gcd|lcm|inf|infinity")
_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Mn", "Me"}
_COMMAND = re.compile(r"\\[a-zA-Z]+\s*\{[^{}]*\}")
_DEGREES = re.compile(r"\s*\^\s*\{?\s*\\circ\s*\}?")

logging.getLogger("math_verify").setLevel(logging.CRITICAL)
mv_parser.TIMEOUT_WARNING_SHOWN = True  # the deadline is the pool's


def equivalent(gold: str, answer: str) -> bool:
    """Whether `answer` equals `gold`, readable or not. Raises TooLarge if comparing them would never end."""
    golds, answers = readings(gold), readings(answer)
    pairs = list(itertools.product(golds, answers))
    if any(itertools.starmap(same_tree, pairs)):
        return True
    for expression in (*golds, *answers):
        check_size(expression)
    return any(verify(*pair, timeout_seconds=None, allow_set_relation_comp=True) for pair in pairs)


def readings(text: str) -> tuple[Any, ...]:
    """Returns the expressions that `text` may mean: it is one formula, or a text that ends in one or more.

    Empty if nothing is readable.
    """
    if is_prose(text):
        return tuple(read_in_prose(text))
    if any(unicodedata.category(character) in _INVISIBLE for character in text if character not in "\n\t\r"):
        return ()  # a 4, a zero-width space and another 4 are not 4
    expression = read_latex(clean(text))
    return tuple(read_in_prose(text)) if expression is None else (expression,)


def is_prose(text: str) -> bool:
    """Whether `text` is a sentence rather than a formula.

    A sentence has two ordinary words outside of commands, or one beside a formula in dollars, or a word that
    introduces an answer, or many letters that are not ASCII.
    """
    if sum(character.isalpha() and not character.isascii() for character in text) >= _FOREIGN_LETTERS:
        return True
    plain = text if "$" in text else _COMMAND.sub(" ", text)
    words = [word.lower() for word in _WORDS.findall(plain) if not _MATH_WORD.fullmatch(word.lower())]
    return len(words) >= 2 or (
        len(words) == 1 and (_SENTENCE_WORD.fullmatch(words[0]) is not None or "$" in text.strip("$ .\n"))
    )


@lru_cache(maxsize=512)
def read_latex(text: str) -> Any:
    """Returns the expression that cleaned `text` writes, None if it is not readable. Raises TooLarge."""
    check_nesting(text)
    for candidate in _spellings(text):
        latex = normalize_latex(candidate, NORMALIZATION)
        for part in dict.fromkeys((latex, mv_parser.get_last_eq(latex))):
            try:
                return Converter(is_real=not should_treat_as_complex(part)).parse(part)
            except TooLarge:
                raise
            except Exception:  # the library raises many types for unreadable text, up to plain Exception
                continue
    return None


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
    """Returns `text` without the unit at its end, and `text` itself."""
    text = _PYTHON_POWER.sub("^", _DEGREES.sub("", text))
    return list(dict.fromkeys((_TEXT_UNIT.sub("", text) or text, text)))


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
