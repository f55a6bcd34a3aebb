r"""Verdicts that need no algebra: equal text, and equal numbers in any common notation.

A number is what `read_number` reads: integers and decimals with thousands separators (`1,234`, `1{,}234`,
`1\,234`), fractions (`3/4`, `\frac{3}{4}`, `\frac34`), mixed numbers (`1\frac{3}{4}`, `1 3/4`), powers of ten
(`1.5e-3`, `1.5 \times 10^{-3}`, `10^{-9}`), with a currency, a per cent sign, a unit (`90^\circ`,
`125\text{ miles}`) or a scale (`5 million`); `units` has the words that may follow a number.

Two numbers are equal if they are exactly equal as fractions, or, if one of them is a decimal, if they
agree to six places and to `RELATIVE` (`agree`). A decimal that is whole, 1.0, is exact. A percentage equals
its number and its hundredth.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from bapo_lightning.extras.math.notation import unwrapped
from bapo_lightning.extras.math.texts import TEXT, text_verdict
from bapo_lightning.extras.math.units import SCALED, SCALES, TEXT_COMMAND, UNIT

HALF_A_UNIT = Fraction(1, 2 * 10**6)  # of the sixth decimal place; math-verify rounds to six
RELATIVE = Fraction(2, 10**6)  # math-verify has no such bound and takes 5.3e-9 for 1e-9
MAX_DIGITS = 400
MAX_EXPONENT = 300

_SHORT_FRACTION = re.compile(r"\\frac\s*(?:\{([^{}]*)\}|([0-9a-zA-Z]))\s*(?:\{([^{}]*)\}|([0-9a-zA-Z]))")
_CHOICE = re.compile(r"\(([A-Za-z])\)")

_DIGITS = r"(?:[1-9][0-9]{0,2}(?:(?:,[0-9]{3})+|(?: [0-9]{3})+)|[0-9]+)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.[0-9]*)?|\.[0-9]+)"
_BASED = re.compile(  # 1021_3, (1021)_{\text{three}}, `1021\text{ base }3`
    r"\(?\s*([0-9A-Za-z]{1,100})\s*\)?\s*(?:_\s*\{?|(?:\\text\{)?\s*\(?base\b)\s*(?:\\text\{|\}|\()*\s*"
    r"([0-9]{1,2}|two|three|four|five|six|seven|eight|nine|ten|twelve|sixteen)\s*[)}]*",
    re.IGNORECASE,
)
_BASES = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
    "twelve": 12, "sixteen": 16,
}  # fmt: skip
_NO_DEGREES = re.compile(r"\brad(?:ian)?s?\b|%|percent")
_DEGREES = re.compile(r"\\circ|\\degree|\bdegrees?\b")
_NUMBER = re.compile(
    rf"(?P<sign>[-+]?)\s*(?:(?:USD?|EUR|GBP)(?=[\s\\$€£]))?\s*(?:\\?[$€£¥])?\s*(?P<sign2>-?)\s*"
    rf"(?:(?P<whole>[0-9]{{1,9}})?\s*\\frac\{{\s*(?P<topsign>-?)\s*(?P<top>{_DECIMAL})\s*\}}"
    rf"\{{\s*(?P<bottom>{_DECIMAL})\s*\}}"
    r"|(?P<mixed>[0-9]{1,9})\s+(?P<upper>[0-9]{1,9})\s*/\s*(?P<lower>[0-9]{1,9})"
    rf"|(?P<numerator>{_DECIMAL})\s*/\s*(?P<denominator>{_DECIMAL})"
    r"|10\s*\^\s*\{?\s*(?P<ten>[-+]?[0-9]{1,4})\s*\}?"
    rf"|(?P<mantissa>{_DECIMAL})(?:[eE](?P<exponent>[-+]?[0-9]{{1,4}})"
    rf"|\s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*\{{?\s*(?P<power>[-+]?[0-9]{{1,4}})\s*\}}?)?)"
    rf"(?:(?P<percent>\s*(?:\\?%|per\s?cent|{TEXT_COMMAND}\{{\s*per\s?cent\s*\}}))|{SCALED}|{UNIT})?"
)


@dataclass(frozen=True, slots=True)
class PlainNumber:
    """An exact value, and its notation."""

    value: Fraction
    is_decimal: bool = False  # not whole, and written with a point or a negative power
    is_percent: bool = False
    is_division: bool = False  # a fraction without remainder: 84/2

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
    """Returns the number that cleaned `text` is; None if it is not one or is longer than `MAX_DIGITS`."""
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
    """Returns the one string of all answers that are equal without algebra, such as `3/4` for numbers."""
    number = read_number(cleaned)
    return normal_text(cleaned) if number is None else str(number)


def normal_text(cleaned: str) -> str:
    """Returns `cleaned` without spaces, font commands and optional braces; `(A)` becomes `A`."""
    text = TEXT.sub(r"\1", cleaned).replace("$", "")
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
        one, two = (gold, answer) if _DEGREES.search(gold) else (answer, gold)
        if _DEGREES.search(one) and _NO_DEGREES.search(two):
            return False
        if refuse_unevaluated and answer_number.is_division and not gold_number.is_division:
            return False
        return gold_number.equals(answer_number)
    bases = _BASED.fullmatch(gold), _BASED.fullmatch(answer)
    if bases[0] is not None and bases[1] is not None:
        first, second = _in_base(bases[0]), _in_base(bases[1])
        return first == second or (not refuse_unevaluated and first[0] == second[0] and type(first[0]) is int)
    if gold_number is None and answer_number is None and normal_text(gold) == normal_text(answer) != "":
        return True
    return text_verdict(gold, answer)


def agree(first: Fraction, second: Fraction, tolerant: bool) -> bool:
    """Whether two values are equal: exactly, or, if one side is a decimal (`tolerant`), within half a unit
    of the sixth decimal place and relatively.
    """
    difference = abs(first - second)
    if difference == 0 or not tolerant:
        return difference == 0
    return difference <= HALF_A_UNIT and difference <= RELATIVE * max(abs(first), abs(second))


def _in_base(match: re.Match[str]) -> tuple[int | str, int]:
    """Returns the whole number and its base; the digits if the base has no such digits."""
    base = _BASES.get(match[2].lower()) or int(match[2])
    try:
        return int(match[1], base), base
    except ValueError:
        return match[1], base


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
