"""Verdicts on free text that ends in a number, such as answers to GSM8K. Nothing is evaluated.

text                     read as      because
1,234   12,345,678       1234 ...     commas between groups of three digits belong to the number
1,23    (1, 2)           23, 2        other commas separate numbers
-7   = -7   $-7   −7     -7           a sign belongs to the number, unless it stands right behind something to
9-7   x-7   9 - 7        7            subtract from or has a space behind it: then it is an operator
7.   7.0   .5            7, 7.0, 0.5  a dot without a digit behind it ends the sentence
+7   007   $7   7%       7            currencies and units are passed over
1e5   2.5E-3   0x5       none         an exponent or the prefix of another base makes it no plain number
1/2                      2            fractions are not read: these are two numbers

Only the number counts, whatever is said about it: a box with `1, 2, 5` gives 5, and so do `not 5` and
`#### 5 or 6`.
A number in plain notation has neither commas nor a plus.
"""

from __future__ import annotations

import re

from bapo_lightning.rewards.extract import closing_brace
from bapo_lightning.rewards.scores import UNPARSABLE, all_or_nothing, pairs_of
from bapo_lightning.system.errors import DataError
from bapo_lightning.types import Completion, FinishReason, Problem, Score

MARK = "####"  # GSM8K's
MAX_CHARACTERS = 64  # a longer number is not an answer

_BOX = "\\boxed{"
_NUMBER = re.compile(
    r"(?:(?<![\w.)\]}%])[-+])?"  # sign
    r"(?:0[xXbBoO][0-9a-fA-F]+"
    r"|(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|(?<![\w.])\.[0-9]+)(?:[eE][-+]?[0-9]+)?)"
)


def last_number(
    problems: list[Problem], completions: list[Completion], require_stop: bool = False
) -> list[Score]:
    """Scores each completion against the problem at the same index: 1.0 if its final number is exactly the
    gold answer, UNPARSABLE if `final_number` finds none.

    `require_stop` makes a response that was cut at the token limit unparsable; otherwise its final number
    counts. Raises DataError if a gold answer is not a number.
    """
    return [_verdict(*pair, require_stop) for pair in pairs_of(problems, completions)]


def final_number(text: str) -> str | None:
    r"""Returns the number that a response settles on, in plain notation: the first of these that exists:

    1. the first number after the last ####,
    2. the last number in the last closed \boxed{...},
    3. the last number of the text.
    """
    _, mark, behind = text.rpartition(MARK)
    return (mark and first_number_in(behind)) or last_number_in(_boxed(text)) or last_number_in(text)


def first_number_in(text: str) -> str | None:
    """Returns the first number of `text` in plain notation, None if it is not plain, too long or missing."""
    match = _NUMBER.search(_with_ascii_minus(text))
    return None if match is None else _plain(match.group())


def last_number_in(text: str) -> str | None:
    """Returns the last number of `text` in plain notation, None if it is not plain, too long or missing."""
    numbers = _NUMBER.findall(_with_ascii_minus(text))
    return _plain(numbers[-1]) if numbers else None


def whole_number_text(text: str) -> str | None:
    """Returns `text` in plain notation if it is one number and nothing else except spaces around it."""
    match = _NUMBER.fullmatch(_with_ascii_minus(text).strip())
    return None if match is None else _plain(match.group())


def canonical(number: str) -> str:
    """Returns the one form of all numbers in plain notation that are exactly equal.

    7.0 and 007 become 7, 0.10 becomes 0.1, -0 becomes 0.
    """
    sign, digits = ("-", number[1:]) if number.startswith("-") else ("", number)
    whole, _, fraction = digits.partition(".")
    whole, fraction = whole.lstrip("0") or "0", fraction.rstrip("0")
    magnitude = f"{whole}.{fraction}" if fraction else whole
    return magnitude if magnitude == "0" else sign + magnitude


def _verdict(problem: Problem, completion: Completion, require_stop: bool) -> Score:
    gold = whole_number_text(problem.answer)
    if gold is None:
        raise DataError(
            f"problem {problem.id} has the gold answer {problem.answer!r}, and reward=last_number needs a "
            "number; check the data"
        )
    is_cut = completion.finish is not FinishReason.STOP
    number = None if require_stop and is_cut else final_number(completion.text)
    if number is None:
        return UNPARSABLE
    answer = canonical(number)
    return all_or_nothing(answer == canonical(gold), answer)


def _boxed(text: str) -> str:
    """Returns the content of the last box, empty if it is not closed; LaTeX's 1{,}234 becomes 1,234."""
    _, box, behind = text.rpartition(_BOX)
    end = closing_brace(behind, 0) if box else None
    return "" if end is None else behind[:end].replace("{,}", ",")


def _with_ascii_minus(text: str) -> str:
    return text.replace("−", "-")


def _plain(number: str) -> str | None:
    if len(number) > MAX_CHARACTERS or number.upper() != number.lower():  # it has letters
        return None
    return number.replace(",", "").removeprefix("+")
