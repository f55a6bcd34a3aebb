r"""Verdicts that need no algebra: equal text, and equal numbers in any common notation.

A number is what `read_number` reads: integers and decimals with thousands separators (`1,234`, `1{,}234`,
`1\,234`), fractions (`3/4`, `\frac{3}{4}`, `\frac34`), mixed numbers (`1\frac{3}{4}`), powers of ten
(`1.5e-3`, `1.5 \times 10^{-3}`), with a currency, a per cent sign or a unit (`90^\circ`, `125\text{ miles}`,
`5 apples`). Two numbers are equal when they are exactly equal as fractions, or, where one of them is written
as a decimal, when they agree to `DECIMALS` places and to `RELATIVE`. A percentage equals its number and its
hundredth.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

DECIMALS = 6  # math-verify's
RELATIVE = Fraction(2, 10**6)  # math-verify has no such bound and takes 5.3e-9 for 1e-9
MAX_DIGITS = 400
MAX_EXPONENT = 300

_SIGN = {"−": "-", "–": "-", "﹣": "-", "－": "-"}
_SYMBOLS = {
    **_SIGN,
    "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "π": r"\pi ", "∞": r"\infty ", "√": r"\sqrt ",
    "°": r"^{\circ}", "²": "^{2}", "³": "^{3}", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ",
    "∩": r"\cap ", "∈": r"\in ", "½": r"\frac{1}{2}", "％": "%", "\u00a0": " ", "\u2009": " ", "\u202f": " ",
}  # fmt: skip
_TRANSLATION = str.maketrans(_SYMBOLS)
_WRAPPERS = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r"\$\$([^$]*)\$\$",
        r"\$([^$]*)\$",
        r"\\\(((?:(?!\\\)).)*)\\\)",
        r"\\\[((?:(?!\\\]).)*)\\\]",
        r"\\(?:boxed|fbox|text|textbf|textrm|textit|textnormal|mathrm|mathbf|mbox|displaystyle)\s*\{([^{}]*)\}",
        r"\{([^{}]*)\}",
        r"\*\*([^*]*)\*\*",
    )
)
_SPACING = re.compile(
    r"\\(?:left|right|big|Big|bigl|bigr|displaystyle|limits)(?![a-zA-Z])"
    r"|(?<!\\)\\[!,;: ]|~|\\q?quad(?![a-zA-Z])"
)
_THIN_SPACE = re.compile(r"(?<=[0-9])(?:\\,|\\ |\{,\}|,\\!|,\\,)\s*(?=[0-9]{3}(?![0-9]))")
_FRACTION_COMMAND = re.compile(r"\\[dtc]frac(?![a-zA-Z])")
_SHORT_FRACTION = re.compile(r"\\frac\s*(?:\{([^{}]*)\}|([0-9a-zA-Z]))\s*(?:\{([^{}]*)\}|([0-9a-zA-Z]))")
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textrm|textit|textnormal|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_CHOICE = re.compile(r"\(([A-Za-z])\)")

_DIGITS = r"(?:[1-9][0-9]{0,2}(?:(?:,[0-9]{3})+|(?: [0-9]{3})+)|[0-9]+)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.[0-9]*)?|\.[0-9]+)"
# A word is a unit if it has four letters (`3 ab` stays a product) or is one of these short ones, unless it
# changes the number.
_NO_UNIT = (
    r"(?!(?:and|or|to|mod|alpha|beta|gamma|delta|theta|lambda|sigma|omega|sqrt|infinity|half|dozen|hundred"
    r"|thousand|[mb]illion|trillion|squared|cubed|factorial|times|plus|minus|over|choose|percent)\b)"
)
_WORD = (
    rf"{_NO_UNIT}(?:[A-Za-z]{{4,}}|[cmk]m|[km]?g|ft|in|lbs?|oz|mi|hrs?|mins?|secs?|mph|days?|cups?|men|USD)"
)
_UNIT = (
    r"(?:\s*\\(?:text|textbf|textit|textrm|textnormal|mathrm|mbox)\s*"
    r"\{(?!\s*[ap]\.?m)[^{}0-9]*\}(?:\^\{?[0-9]\}?)?"
    rf"|\s*\^\s*\{{?\s*\\circ\s*\}}?(?:\s*[CF])?|\s*\\degree"
    rf"|\s+{_WORD}(?:\s+{_NO_UNIT}[a-z]{{2,}}){{0,2}}(?:\^\{{?[23]\}}?)?"
    r"|\s*(?:[cmk]m|kg|mph|ft)(?:\^\{?[23]\}?)?)"
)
_BASED = re.compile(r"([0-9A-Za-z]{1,100})_\{?\s*(?:\\text\{)?([0-9]{1,2})\}?\}?")  # 1021_3
_NUMBER = re.compile(
    rf"(?P<sign>[-+]?)\s*(?:\\?[$€£¥]|\\\$)?\s*(?P<sign2>-?)\s*"
    rf"(?:(?P<whole>[0-9]{{1,9}})?\s*\\frac\{{\s*(?P<topsign>-?)\s*(?P<top>{_DECIMAL})\s*\}}"
    rf"\{{\s*(?P<bottom>{_DECIMAL})\s*\}}"
    rf"|(?P<numerator>{_DECIMAL})\s*/\s*(?P<denominator>{_DECIMAL})"
    rf"|(?P<mantissa>{_DECIMAL})(?:[eE](?P<exponent>[-+]?[0-9]{{1,4}})"
    rf"|\s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*\{{?\s*(?P<power>[-+]?[0-9]{{1,4}})\s*\}}?)?)"
    rf"(?:(?P<percent>\s*(?:\\?%|percent|per\s+cent))|{_UNIT})?"
)


@dataclass(frozen=True, slots=True)
class PlainNumber:
    """An exact value, and its notation."""

    value: Fraction
    is_decimal: bool = False
    is_percent: bool = False

    def equals(self, other: PlainNumber) -> bool:
        """Whether both are the same number by the rules at the top of this file."""
        if _agree(self.value, other.value, self.is_decimal or other.is_decimal):
            return True
        if self.is_percent == other.is_percent:
            return False
        scale = Fraction(1, 100) if self.is_percent else Fraction(100)
        return _agree(self.value * scale, other.value, self.is_decimal or other.is_decimal)

    def __str__(self) -> str:
        return f"{self.value}%" if self.is_percent else str(self.value)


def clean(text: str) -> str:
    """Returns `text` with one notation per symbol and without spacing commands and marks around it."""
    text = text.translate(_TRANSLATION).strip()
    text = _SPACING.sub(" ", _THIN_SPACE.sub(",", text)).replace("{,}", ",")
    text = _FRACTION_COMMAND.sub(r"\\frac", text).replace(r"\%", "%")
    return unwrapped(text)


def unwrapped(text: str) -> str:
    """Returns `text` without a full stop, or dollars, brackets, boxes and braces around all of it."""
    for _ in range(8):
        before = text
        text = text.strip() if text.endswith(("\\.", "\\,", "\\;")) else text.strip().rstrip(".,;").strip()
        for wrapper in _WRAPPERS:
            match = wrapper.fullmatch(text)
            if match is not None:
                text = match.group(1)
        if text == before:
            return text
    return text


def read_number(text: str) -> PlainNumber | None:
    """Returns the number that cleaned `text` is; None if it is none or is longer than `MAX_DIGITS`."""
    if len(text) > MAX_DIGITS:
        return None
    match = _NUMBER.fullmatch(_SHORT_FRACTION.sub(_with_braces, text) if "frac" in text else text)
    if match is None:
        return None
    part = match.groupdict()
    value, is_decimal = _value(part)
    if value is None:
        return None
    if (part["sign"] == "-") != (part["sign2"] == "-"):
        value = -value
    return PlainNumber(value, is_decimal, part["percent"] is not None)


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


def quick_verdict(gold: str, answer: str) -> bool | None:
    """Whether two cleaned texts are equal; None if that takes algebra to decide."""
    if gold == answer:
        return bool(gold)
    gold_number, answer_number = read_number(gold), read_number(answer)
    if gold_number is not None and answer_number is not None:
        return gold_number.equals(answer_number)
    bases = _BASED.fullmatch(gold), _BASED.fullmatch(answer)
    if bases[0] is not None and bases[1] is not None:
        return _in_base(bases[0]) == _in_base(bases[1])
    if gold_number is None and answer_number is None and normal_text(gold) == normal_text(answer) != "":
        return True
    return None


def _agree(first: Fraction, second: Fraction, tolerant: bool) -> bool:
    if first == second:
        return True
    if not tolerant or abs(first - second) > RELATIVE * max(abs(first), abs(second)):
        return False
    return round(first, DECIMALS) == round(second, DECIMALS)


def _in_base(match: re.Match[str]) -> int | tuple[str, str]:
    """Returns the whole number, or digits and base as written if the base has no such digits."""
    digits, base = match.groups()
    try:
        return int(digits, int(base))
    except ValueError:
        return digits, base


def _value(part: dict[str, str | None]) -> tuple[Fraction | None, bool]:
    """Returns the value without its sign, and whether it is written as a decimal."""
    if part["top"] is not None or part["numerator"] is not None:
        top, bottom = part["top"] or part["numerator"], part["bottom"] or part["denominator"]
        assert top is not None and bottom is not None
        if _fraction(bottom) == 0 or (part["whole"] and part["topsign"]):
            return None, False
        value = _fraction(top) / _fraction(bottom)
        value = -value if part["topsign"] else value
        return value + int(part["whole"] or 0), "." in top or "." in bottom
    mantissa, exponent = part["mantissa"], int(part["exponent"] or part["power"] or 0)
    assert mantissa is not None
    if abs(exponent) > MAX_EXPONENT:
        return None, False
    return _fraction(mantissa) * Fraction(10) ** exponent, "." in mantissa or exponent < 0


def _fraction(digits: str) -> Fraction:
    return Fraction(digits.replace(",", "").replace(" ", ""))


def _with_braces(match: re.Match[str]) -> str:
    top, top_digit, bottom, bottom_digit = match.groups()
    return rf"\frac{{{top_digit if top is None else top}}}{{{bottom_digit if bottom is None else bottom}}}"
