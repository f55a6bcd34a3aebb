r"""Verdicts on cleaned answers that are text rather than mathematics: words, times of day, brackets.

Words are compared as words, since a reader of formulas takes `east` for the product e a s t. A time of day is
no ratio, and the pair `(1, 2)`, which has an order, is not the set `\{1, 2\}`, which has none.
"""

from __future__ import annotations

import math
import re

from bapo_lightning.rewards.math.units import TEXT_COMMAND

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
