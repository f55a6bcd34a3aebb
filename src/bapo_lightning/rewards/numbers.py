"""Reads decimal numbers in running text, without evaluating anything.

text                     read as      because
1,234   12,345,678       1234 ...     commas between groups of three digits belong to the number
1,23    (1, 2)           23, 2        other commas separate numbers
-7   = -7   $-7   −7     -7           a sign belongs to the number unless something to subtract from stands right before it
9-7   x-7   9 - 7        7            and then, or with a space behind it, it is an operator
7.   7.0   .5            7, 7.0, 0.5  a dot without a digit behind it ends the sentence
+7   007   $7   7%       7            currencies and units are passed over
1/2   1e5                2, 5         fractions and exponents are not read: these are two numbers each
"""

from __future__ import annotations

import re
from decimal import Decimal

MAX_CHARACTERS = 64  # a longer number is no answer, and its arithmetic would take the time of its square

_NUMBER = re.compile(
    r"(?:(?<![\w.)\]}%])[-+])?"  # sign
    r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|(?<![\w.])\.[0-9]+)"
)


def first_number(text: str) -> str | None:
    """The first number of `text` in plain notation (no commas, no plus), None when there is none or it is too
    long.
    """
    match = _NUMBER.search(_with_ascii_minus(text))
    return None if match is None else _plain(match.group())


def last_number(text: str) -> str | None:
    """The last number of `text` in plain notation (no commas, no plus), None when there is none or it is too
    long.
    """
    found = _NUMBER.findall(_with_ascii_minus(text))
    return _plain(found[-1]) if found else None


def whole_number_text(text: str) -> str | None:
    """`text` in plain notation when, spaces apart, it is one number and nothing else."""
    match = _NUMBER.fullmatch(_with_ascii_minus(text).strip())
    return None if match is None else _plain(match.group())


def same_number(first: str, second: str) -> bool:
    """Whether two numbers in plain notation are equal, exactly: 7.0 is 7, 0.1 is 0.10, and 0.333 is not a
    third.
    """
    return Decimal(first) == Decimal(second)


def canonical(number: str) -> str:
    """The one form of a number in plain notation: equal numbers give equal strings, 7.0 and 007 become 7, -0
    becomes 0.
    """
    sign, digits = ("-", number[1:]) if number.startswith("-") else ("", number)
    whole, _, fraction = digits.partition(".")
    whole, fraction = whole.lstrip("0") or "0", fraction.rstrip("0")
    magnitude = f"{whole}.{fraction}" if fraction else whole
    return magnitude if magnitude == "0" else sign + magnitude


def _with_ascii_minus(text: str) -> str:
    return text.replace("−", "-")


def _plain(number: str) -> str | None:
    return None if len(number) > MAX_CHARACTERS else number.replace(",", "").removeprefix("+")
