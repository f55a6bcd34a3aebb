r"""Verdicts that need no algebra: equal text, and equal numbers in any common notation.

A number is what `read_number` reads: integers and decimals with thousands separators (`1,234`, `1{,}234`,
`1\,234`), fractions (`3/4`, `\frac{3}{4}`, `\frac34`), mixed numbers (`1\frac{3}{4}`, `1 3/4`), powers of ten
(`1.5e-3`, `1.5 \times 10^{-3}`, `10^{-9}`), with a currency, a per cent sign, a unit (`90^\circ`,
`125\text{ miles}`) or a scale (`5 million`); `units` has what may stand behind a number.

Two numbers are equal when they are exactly equal as fractions, or, where one of them is a decimal, when they
agree to six places and to `RELATIVE` (`agree`). A decimal that is whole, 1.0, is exact. A percentage equals
its number and its hundredth.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from bapo_lightning.rewards.math.notation import unwrapped
from bapo_lightning.rewards.math.units import SCALED, SCALES, TEXT_COMMAND, UNIT

HALF_A_UNIT = Fraction(1, 2 * 10**6)  # of the sixth decimal place; math-verify rounds to six
RELATIVE = Fraction(2, 10**6)  # math-verify has no such bound and takes 5.3e-9 for 1e-9
MAX_DIGITS = 400
MAX_EXPONENT = 300

_SHORT_FRACTION = re.compile(r"\\frac\s*(?:\{([^{}]*)\}|([0-9a-zA-Z]))\s*(?:\{([^{}]*)\}|([0-9a-zA-Z]))")
_TEXT_COMMAND = re.compile(rf"{TEXT_COMMAND}\{{([^{{}}]*)\}}")
_CHOICE = re.compile(r"\(([A-Za-z])\)")

_DIGITS = r"(?:[1-9][0-9]{0,2}(?:(?:,[0-9]{3})+|(?: [0-9]{3})+)|[0-9]+)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.[0-9]*)?|\.[0-9]+)"
_BASED = re.compile(r"([0-9A-Za-z]{1,100})_\{?\s*(?:\\text\{)?([0-9]{1,2})\}?\}?")  # 1021_3
_NUMBER = re.compile(
    rf"(?P<sign>[-+]?)\s*(?:\\?[$€£¥]|\\\$)?\s*(?P<sign2>-?)\s*"
    rf"(?:(?P<whole>[0-9]{{1,9}})?\s*\\frac\{{\s*(?P<topsign>-?)\s*(?P<top>{_DECIMAL})\s*\}}"
    rf"\{{\s*(?P<bottom>{_DECIMAL})\s*\}}"
    r"|(?P<mixed>[0-9]{1,9})\s+(?P<upper>[0-9]{1,9})\s*/\s*(?P<lower>[0-9]{1,9})"
    rf"|(?P<numerator>{_DECIMAL})\s*/\s*(?P<denominator>{_DECIMAL})"
    r"|10\s*\^\s*\{?\s*(?P<ten>[-+]?[0-9]{1,4})\s*\}?"
    rf"|(?P<mantissa>{_DECIMAL})(?:[eE](?P<exponent>[-+]?[0-9]{{1,4}})"
    rf"|\s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*\{{?\s*(?P<power>[-+]?[0-9]{{1,4}})\s*\}}?)?)"
    rf"(?:(?P<percent>\s*(?:\\?%|percent|per\s+cent))|{SCALED}|{UNIT})?"
)


@dataclass(frozen=True, slots=True)
class PlainNumber:
    """An exact value, and its notation."""

    value: Fraction
    is_decimal: bool = False  # a decimal with digits behind the point that count
    is_percent: bool = False
    is_division: bool = False  # a fraction that comes out whole: 84/2

    def equals(self, other: PlainNumber) -> bool:
        """Whether both are the same number by the rules at the top of this file."""
        if agree(self.value, other.value, self.is_decimal or other.is_decimal):
            return True
        if self.is_percent == other.is_percent:
            return False
        scale = Fraction(1, 100) if self.is_percent else Fraction(100)
        return agree(self.value * scale, other.value, self.is_decimal or other.is_decimal)

    def __str__(self) -> str:
        return f"{self.value}%" if self.is_percent else str(self.value)


def read_number(text: str) -> PlainNumber | None:
    """Returns the number that cleaned `text` is; None if it is none or is longer than `MAX_DIGITS`."""
    return _read_number(text) if len(text) <= MAX_DIGITS else None


@lru_cache(maxsize=4096)  # an answer is read twice, a gold answer once for each response
def _read_number(text: str) -> PlainNumber | None:
    if text.isascii() and text.isdigit():
        return PlainNumber(Fraction(int(text)))
    match = _NUMBER.fullmatch(_SHORT_FRACTION.sub(_with_braces, text) if "frac" in text else text)
    if match is None:
        return None
    part = match.groupdict()
    value = _value(part)
    if value is None:
        return None
    scale = part["scale"] or part["text_scale"]
    value *= SCALES[scale.lower()] if scale else 1
    if (part["sign"] == "-") != (part["sign2"] == "-"):
        value = -value
    top, bottom = part["top"] or part["numerator"], part["bottom"] or part["denominator"]
    has_point = any("." in digits for digits in (top, bottom, part["mantissa"]) if digits)
    has_small_power = (part["exponent"] or part["power"] or "").startswith("-")
    is_whole = value.denominator == 1
    return PlainNumber(
        value,
        is_decimal=(has_point or has_small_power) and not is_whole,
        is_percent=part["percent"] is not None,
        is_division=bottom is not None and is_whole and _fraction(bottom) != 1,
    )


def normal_form(cleaned: str) -> str:
    """Returns the one string of all answers that are equal without algebra.

    Numbers are written as `3/4`, other text without spaces and font commands.
    """
    number = read_number(cleaned)
    return normal_text(cleaned) if number is None else str(number)


def normal_text(cleaned: str) -> str:
    """Returns `cleaned` without spaces, font commands and optional braces; `(A)` becomes `A`."""
    text = _TEXT_COMMAND.sub(r"\1", cleaned).replace("$", "")
    text = _SHORT_FRACTION.sub(_with_braces, text)
    text = re.sub(r"(?<=[0-9])\s+(?=[0-9])|(?<=[a-zA-Z])\s+(?=[a-zA-Z])", "\x00", text)
    text = unwrapped(re.sub(r"\s+", "", text).replace("\x00", " "))
    choice = _CHOICE.fullmatch(text)
    return choice.group(1) if choice is not None else text


def quick_verdict(gold: str, answer: str, refuse_unevaluated: bool = True) -> bool | None:
    """Whether two cleaned texts are equal; None if that takes algebra to decide."""
    if gold == answer:
        return bool(gold)
    gold_number, answer_number = read_number(gold), read_number(answer)
    if gold_number is not None and answer_number is not None:
        if refuse_unevaluated and answer_number.is_division and not gold_number.is_division:
            return False
        return gold_number.equals(answer_number)
    bases = _BASED.fullmatch(gold), _BASED.fullmatch(answer)
    if bases[0] is not None and bases[1] is not None:
        is_converted = bases[0][2] == bases[1][2] or not refuse_unevaluated
        return is_converted and _in_base(bases[0]) == _in_base(bases[1])
    if gold_number is None and answer_number is None and normal_text(gold) == normal_text(answer) != "":
        return True
    return text_verdict(gold, answer)


def agree(first: Fraction, second: Fraction, tolerant: bool) -> bool:
    """Whether two values are equal: exactly, or, where one side is a decimal (`tolerant`), within half a unit
    of the sixth decimal place and relatively.
    """
    difference = abs(first - second)
    if difference == 0 or not tolerant:
        return difference == 0
    return difference <= HALF_A_UNIT and difference <= RELATIVE * max(abs(first), abs(second))


def _in_base(match: re.Match[str]) -> int | tuple[str, str]:
    """Returns the whole number, or digits and base as written if the base has no such digits."""
    digits, base = match.groups()
    try:
        return int(digits, int(base))
    except ValueError:
        return digits, base


def _value(part: dict[str, str | None]) -> Fraction | None:
    """Returns the value without its sign."""
    top, bottom = part["top"] or part["numerator"], part["bottom"] or part["denominator"]
    if top is not None and bottom is not None:
        if _fraction(bottom) == 0 or (part["whole"] and part["topsign"]):
            return None
        value = _fraction(top) / _fraction(bottom)
        return (-value if part["topsign"] else value) + int(part["whole"] or 0)
    if part["mixed"] is not None:
        upper, lower = int(part["upper"] or 0), int(part["lower"] or 0)
        return int(part["mixed"]) + Fraction(upper, lower) if upper < lower else None
    exponent = int(part["exponent"] or part["power"] or part["ten"] or 0)
    if abs(exponent) > MAX_EXPONENT:
        return None
    return _fraction(part["mantissa"] or "1") * Fraction(10) ** exponent


def _fraction(digits: str) -> Fraction:
    return Fraction(digits.replace(",", "").replace(" ", ""))


def _with_braces(match: re.Match[str]) -> str:
    top, top_digit, bottom, bottom_digit = match.groups()
    return rf"\frac{{{top_digit if top is None else top}}}{{{bottom_digit if bottom is None else bottom}}}"


# Answers that are text rather than mathematics. Words are compared as words, since a reader of formulas takes
# `east` for the product e a s t. A time of day is no ratio, and the pair `(1, 2)`, which has an order, is not
# the set `\{1, 2\}`, which has none.

MAX_CHARACTERS = 200  # of a text that is words; a longer one is left to algebra
MAX_CLOCK_CHARACTERS = 40

_WORDS = re.compile(r"[^\W\d_]+(?:[ '’-][^\W\d_]+)*")
_LONG_WORD = re.compile(r"[^\W\d_]{2}")
_BETWEEN_WORDS = re.compile(r"\s*[,;]\s*|\s+(?:and|or)\s+", re.IGNORECASE)
_MATHEMATICS = {"pi", "inf", "infty", "infinity", "nan", "alpha", "beta", "gamma", "theta", "lambda", "omega"}
_NO_LIST = re.compile(r"[(|:<>]|\\mid|\\[lg]e")
_CLOCK = re.compile(
    r"(?P<hour>[0-9]{1,2})(?:\s*:\s*(?P<minute>[0-5][0-9])(?:\s*:\s*(?P<second>[0-5][0-9]))?)?"
    rf"\s*(?:{TEXT_COMMAND}\{{)?\s*(?:(?P<half>[ap])\.?\s?m\.?)?\s*\}}?",
    re.IGNORECASE,
)


def text_verdict(gold: str, answer: str) -> bool | None:
    """Whether two cleaned texts are equal as texts; None if they are no texts of one kind."""
    gold_words, answer_words = words_of(gold), words_of(answer)
    if gold_words is not None and answer_words is not None:
        return gold_words == answer_words
    if {gold[:1], answer[:1]} == {"(", "\\"} and (_is_set(gold) or _is_set(answer)):
        return False
    return _clock_verdict(gold, answer)


def words_of(text: str) -> list[str] | None:
    """Returns the items of a list of words in lower case and alphabetic order; None if `text` is none.

    Single letters are variables or choices, and `pi` is a number.
    """
    if not text[:1].isalpha() or len(text) > MAX_CHARACTERS:
        return None
    items = [item.lower() for item in _BETWEEN_WORDS.split(text)]
    is_text = _LONG_WORD.search(text) is not None and all(map(_WORDS.fullmatch, items))
    if is_text and _MATHEMATICS.isdisjoint(items):
        return sorted(items)
    return None


def _is_set(text: str) -> bool:
    """Whether `text` is a set in braces that lists its items, and no tuples."""
    return text.startswith("\\{") and text.endswith("\\}") and _NO_LIST.search(text) is None


def _clock_verdict(gold: str, answer: str) -> bool | None:
    """Whether both are the same time; None if neither is one. One of them may leave out a.m. or p.m."""
    first, second = _clock(gold), _clock(answer)
    if not any(time is not None and _is_time(time) for time in (first, second)):
        return None
    if first is None or second is None:
        return False
    halves = {(time["half"] or "").lower() for time in (first, second)} - {""}
    return _digits(first) == _digits(second) and len(halves) < 2


def _clock(text: str) -> re.Match[str] | None:
    return _CLOCK.fullmatch(text) if len(text) <= MAX_CLOCK_CHARACTERS else None


def _digits(time: re.Match[str]) -> list[int]:
    return [int(time[unit] or 0) for unit in ("hour", "minute", "second")]


def _is_time(time: re.Match[str]) -> bool:
    """Whether this can only be a time: it has a.m. or p.m., or is no ratio in lowest terms."""
    if time["half"] is not None:
        return True
    hour, minute, _ = _digits(time)
    return time["minute"] is not None and (
        time["second"] is not None or minute == 0 or math.gcd(hour, minute) != 1
    )
