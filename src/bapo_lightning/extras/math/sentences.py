r"""Distinguishes sentences from formulas, and sentences that name one value from those that name several.

`The answer is 4 or the answer is 5` names two. Taking the last of them would reward hedging, so after a
mark such a sentence is not an answer.
"""

from __future__ import annotations

import re

from bapo_lightning.extras.math.units import CHANGES, TEXT_COMMAND

_WORDS = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{3,}")
_WORD = re.compile(r"(?<![\\A-Za-z{])[^\W\d_]{2,}")
_SENTENCE_WORD = re.compile(r"answers?|the|therefore|thus|hence|then|results?|values?|solutions?|are")
_FOREIGN_LETTERS = 6  # besides the Greek ones that a formula may have
_MATH_WORD = re.compile(r"sin|cos|tan|cot|sec|csc|log|exp|sqrt|and|max|min|mod|det|gcd|lcm|inf|infinity")
_COMMAND = re.compile(r"\\[a-zA-Z]+\s*\{[^{}]*\}")
_FORMULA = re.compile(
    r"(?<!\\)\$(?:\\.|[^$\\])+\$|\$\$[^$]+\$\$|\\\((?:(?!\\\)).){1,500}\\\)|\\\[(?:(?!\\\]).){1,500}\\\]"
    r"|[^\s$\\]{0,40}\\[a-zA-Z]+(?:\{[^{}]*\}|[^\s${}])*",  # the last: LaTeX without dollars
    re.DOTALL,
)
_JOINED = re.compile(r"\s*(?:,?\s*(?:and|or)|,)\s*", re.IGNORECASE)
_TEXT = re.compile(rf"{TEXT_COMMAND}\{{[^{{}}]*\}}|\\[a-zA-Z]+")
_VARIABLE = re.compile(r"[A-Za-df-hj-z]")  # not e and i
_NUMBER = re.compile(r"(?<![\w.])-?\$?(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)(?:/[0-9]+)?")
_LEFT_SIDE = re.compile(r"[0-9][-+*/×÷.,$%()0-9 ]{0,100}=(?=\s{0,9}-?\$?[0-9.])")  # `2 + 3 =`
_BOUND = re.compile(
    r"\b(?:than|at\s+(?:least|most)|minus|negative|under|over|above|below|up\s+to|between)\s+\Z",
    re.IGNORECASE,
)
_CHANGED = re.compile(rf"\s{{0,9}}-?{CHANGES}")
_DENIAL = re.compile(r"\b(?:not|neither|never|wrong|incorrect)\b|n['’]t\b", re.IGNORECASE)


def is_prose(text: str) -> bool:
    """Whether `text` is a sentence rather than a formula: it has two ordinary words outside commands, or one
    next to a formula in dollars, or one that introduces an answer, or many letters that are not ASCII.
    """
    if (
        not text.isascii()
        and sum(character.isalpha() and not character.isascii() for character in text) >= _FOREIGN_LETTERS
    ):
        return True
    plain = text if "$" in text else _COMMAND.sub(" ", text)
    words = [word.lower() for word in _WORDS.findall(plain) if not _MATH_WORD.fullmatch(word.lower())]
    if len(words) != 1:
        return len(words) > 1
    has_formula = "$" in text.strip("$ .\n") and text.count("$") - text.count("\\$") > 1  # a price has one
    return has_formula or _SENTENCE_WORD.fullmatch(words[0]) is not None


def has_words(text: str) -> bool:
    """Whether there is a word of two letters or more outside commands."""
    return _WORD.search(_COMMAND.sub(" ", text)) is not None


def value_named(sentence: str) -> str | None:
    """Returns the one formula that a sentence states, or the sentence if it states no formula; None if it
    states several values, or denies or changes one.

    Formulas joined by `and`, `or` or commas are one list. Formulas with variables (`the value of $m + n$ is`)
    state only a value. For an equation, the right side counts.
    """
    prose = _LEFT_SIDE.sub(" ", _FORMULA.sub(" $ ", sentence))
    numbers = list(_NUMBER.finditer(prose))
    if is_changed(prose) or _DENIAL.search(prose):
        return None
    values, others = dict[str, str](), dict[str, str]()  # each with the text that states it
    for row in _rows(sentence):
        sides = ", ".join(formula.group().rpartition("=")[2].strip("$\\()[]., ") for formula in row)
        has_variables = _VARIABLE.search(_TEXT.sub("", sides)) is not None
        (others if has_variables else values)[sides] = sentence[row[0].start() : row[-1].end()]
    stated = {number.group().strip("$").replace(",", "") for number in numbers} | values.keys()
    if len(stated) > 1:
        return None
    texts = values or ({} if stated else others)
    return next(iter(texts.values())) if len(texts) == 1 else sentence


def is_changed(text: str) -> bool:
    """Whether words change a number in `text` into another number or into a bound."""
    return any(
        _CHANGED.match(text, number.end())
        or _BOUND.search(text[max(0, number.start() - 20) : number.start()])
        for number in _NUMBER.finditer(text)
    )


def _rows(sentence: str) -> list[list[re.Match[str]]]:
    """Returns the formulas of a sentence, joined formulas in one group."""
    rows: list[list[re.Match[str]]] = []
    for formula in _FORMULA.finditer(sentence):
        if rows and _JOINED.fullmatch(sentence, rows[-1][-1].end(), formula.start()):
            rows[-1].append(formula)
        else:
            rows.append([formula])
    return rows
