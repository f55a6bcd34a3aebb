r"""Answers that are text rather than mathematics: words, choices, times, dates, ratios.

Words are compared as words, since a formula reader takes `east` for the product e a s t. A choice is its
letter, whatever follows it. A time of day is not a ratio, a date not a division, and the pair `(1, 2)`,
which has an order, is not the set `\{1, 2\}`, which has none.
"""

from __future__ import annotations

import math
import re

from bapo_lightning.extras.math.units import TEXT_COMMAND

MAX_CHARACTERS = 200  # of a text in words; a longer one is left to algebra
MAX_CLOCK_CHARACTERS = 40

_WORDS = re.compile(r"[^\W\d_]+(?:[ '’-][^\W\d_]+)*")
_LETTERS = re.compile(r"[a-z]{2,3}")  # a product, unless it is one of these words
_SHORT_WORDS = {
    "no", "on", "yes", "odd", "all", "any", "dne", "red", "sun", "mon", "tue", "wed", "thu", "fri", "sat",
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec", "up", "in", "out",
    "win", "bob",
}  # fmt: skip
_NO_ANSWER = frozenset(["proof", "unknown"])  # what data sets write if there is no answer
_LONG_WORD = re.compile(r"[^\W\d_]{2}")
_BETWEEN_WORDS = re.compile(r"\s*[,;]\s*|\s+(?:and|or)\s+", re.IGNORECASE)
_MATHEMATICS = {"pi", "inf", "infty", "infinity", "nan", "alpha", "beta", "gamma", "theta", "lambda", "omega"}
_NO_LIST = re.compile(r"[(|:<>]|\\mid|\\[lg]e")
TEXT = re.compile(rf"{TEXT_COMMAND}\{{([^{{}}]*)\}}")
_CHOICE = re.compile(
    r"(?:(?:option|choice|answer)\s+)?(?:\(([A-Z])\)|\[([A-Z])\]|([A-Z])(?=\s*[).:]|\Z))\s*[).:]?(.*)",
    re.IGNORECASE | re.DOTALL,
)
_ANOTHER_CHOICE = re.compile(r"(?<![A-Za-z\\{])[A-Z](?![A-Za-z}])|\b(?:or|and|not)\b")
_DATE = re.compile(r"(?=.*[0-9]{4})([0-9]{1,4})([/.-])([0-9]{1,2})\2([0-9]{1,4})")
_RATIO = re.compile(r"[0-9]{1,9}(?:\s*:\s*[0-9]{1,9}){2,9}")
_ARTICLE = re.compile(r"\A(?:an?|the)\s+", re.IGNORECASE)
_BRACES = re.compile(r"\\[{}]|\s")
_CLOCK = re.compile(
    r"(?P<hour>[0-9]{1,2})(?:\s*:\s*(?P<minute>[0-5][0-9])(?:\s*:\s*(?P<second>[0-5][0-9]))?)?"
    rf"\s*(?:{TEXT_COMMAND}\{{)?\s*(?:(?P<half>[ap])\.?\s?m\.?)?\s*\}}?",
    re.IGNORECASE,
)
_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def _in_words(number: int) -> str:
    if number < 20:
        return _ONES[number]
    hundreds, rest = divmod(number, 100)
    head = f"{_ONES[hundreds]} hundred" if hundreds else _TENS[rest // 10 - 2]
    rest = rest if hundreds else rest % 10
    return f"{head} {_in_words(rest)}" if rest else head


_NUMBERS = {_in_words(number): str(number) for number in range(1000)}


def number_in_words(text: str) -> str | None:
    """Returns the digits of a whole number below 1000 that `text` writes in words; None if it has none."""
    words = " ".join(re.split(r"[\s-]+", text.strip().lower())).replace("hundred and ", "hundred ")
    sign = "-" if words.startswith(("minus ", "negative ")) else ""
    digits = _NUMBERS.get(words.partition(" ")[2] if sign else words)
    return None if digits is None else sign + digits


def text_verdict(gold: str, answer: str) -> bool | None:
    """Whether two cleaned texts are equal as texts; None if they are not texts of one kind."""
    if len(gold) == 1 and "A" <= gold <= "Z":
        return _choice_verdict(gold, answer)
    if _LETTERS.fullmatch(gold) and _LETTERS.fullmatch(answer) and _SHORT_WORDS.isdisjoint((gold, answer)):
        return None
    gold_words, answer_words = words_of(gold), words_of(answer)
    if gold_words is not None and answer_words is not None:
        return gold_words == answer_words
    if {gold[:1], answer[:1]} == {"(", "\\"} and (_is_set(gold) or _is_set(answer)):
        return False
    if "\\ldots" in gold and "\\ldots" in answer:
        return _BRACES.sub("", gold) == _BRACES.sub("", answer) or None
    for kind in (_DATE, _RATIO):
        if kind.fullmatch(gold[:MAX_CHARACTERS]) or kind.fullmatch(answer[:MAX_CHARACTERS]):
            return _same_parts(gold, answer, kind is _RATIO)
    return _clock_verdict(gold, answer)


def states_nothing(gold: str) -> bool:
    """Whether a cleaned gold answer is what data sets write if a problem has no answer."""
    return gold.lower() in _NO_ANSWER


def _choice_verdict(gold: str, answer: str) -> bool | None:
    """Whether `answer` chooses the letter `gold`; None if it may be a formula with that letter."""
    chosen = _CHOICE.fullmatch(TEXT.sub(r"\1 ", answer[:MAX_CHARACTERS]).strip())
    if chosen is not None:
        return (chosen[1] or chosen[2] or chosen[3]) == gold and _ANOTHER_CHOICE.search(chosen[4]) is None
    return None if gold in answer else False


def _same_parts(gold: str, answer: str, is_ratio: bool) -> bool:
    first, second = (list(map(int, re.findall("[0-9]+", text[:MAX_CHARACTERS]))) for text in (gold, answer))
    if is_ratio:
        divisors = math.gcd(*first) or 1, math.gcd(*second) or 1
        first, second = (
            [part // by for part in parts] for parts, by in zip((first, second), divisors, strict=True)
        )
        return first == second and ":" in gold and ":" in answer
    return first == second and re.sub("[0-9]", "", gold) == re.sub("[0-9]", "", answer)


def words_of(text: str) -> list[str] | None:
    """Returns a list's words, in lower case and sorted; None for other texts, single letters and `pi`."""
    if not text[:1].isalpha() or len(text) > MAX_CHARACTERS:
        return None
    items = [item.lower() for item in _BETWEEN_WORDS.split(_ARTICLE.sub("", text))]
    is_text = _LONG_WORD.search(text) is not None and all(map(_WORDS.fullmatch, items))
    if is_text and _MATHEMATICS.isdisjoint(items):
        return sorted(items)
    return None


def _is_set(text: str) -> bool:
    """Whether `text` is a set in braces that lists its items, and not tuples."""
    return text.startswith("\\{") and text.endswith("\\}") and _NO_LIST.search(text) is None


def _clock_verdict(gold: str, answer: str) -> bool | None:
    """Whether both are the same time; None if neither is a time. One of them may omit a.m. or p.m."""
    first, second = _clock(gold), _clock(answer)
    if not any(time is not None and _is_time(time) for time in (first, second)):
        return None
    if first is None or second is None:
        return False
    halves = {(time["half"] or "").lower() for time in (first, second)} - {""}
    same = _digits(first) == _digits(second) or _of_the_day(first) == _of_the_day(second)
    return same and len(halves) < 2


def _clock(text: str) -> re.Match[str] | None:
    return _CLOCK.fullmatch(text) if len(text) <= MAX_CLOCK_CHARACTERS else None


def _digits(time: re.Match[str]) -> list[int]:
    return [int(time[unit] or 0) for unit in ("hour", "minute", "second")]


def _of_the_day(time: re.Match[str]) -> list[int]:
    """Returns hours to 24, minutes, seconds."""
    hour, *rest = _digits(time)
    return [hour % 12 + 12 if (time["half"] or "").lower() == "p" else hour, *rest]


def _is_time(time: re.Match[str]) -> bool:
    """Whether this can only be a time: it has a.m. or p.m., or is not a ratio in lowest terms."""
    if time["half"] is not None:
        return True
    hour, minute, _ = _digits(time)
    return time["minute"] is not None and (
        time["second"] is not None or minute == 0 or math.gcd(hour, minute) != 1
    )
