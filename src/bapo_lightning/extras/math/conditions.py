r"""Conditions on one variable, alone or joined by words, and the sets they describe. Runs only in workers.

`x < 2 or x > 3` is the union of two intervals, `x > 2 and x < 3` is `2 < x < 3`. A comma between conditions
may mean either word. Equations that give values of one variable, and numbers, are lists whichever word joins
them: `x = 1 and x = -1` means the same as `x = 1 or x = -1`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import sympy
from latex2sympy2_extended.logic import And
from sympy.core.relational import Relational

from bapo_lightning.extras.math.closed_form import operations
from bapo_lightning.extras.math.units import TEXT_COMMAND

MAX_PARTS = 6  # joined by words

_WORD = re.compile(
    rf",?\s*(?:{TEXT_COMMAND}\{{\s*,?\s*(or|and)\s*,?\s*\}}|\\(lor|land)(?![a-zA-Z])"
    r"|(?<![A-Za-z\\{])(or|and)(?![A-Za-z}]))\s*",
    re.IGNORECASE,
)
_SET_BUILT = re.compile(
    r"\\\{\s*([a-zA-Z])\s*(?:\\in\s*\\mathbb\s*\{?R\}?\s*)?,?\s*(?:\\mid(?![a-z])|:|\||\\colon(?![a-z]))(.+)\\\}"
)
_MEMBER = re.compile(r"\A\s*[a-zA-Z]\s*\\in\s*(?=[\[(]|\\\{)")
_OPEN = re.compile(r"([\[\]])([^\[\]()]+,[^\[\]()]+)([\[\]])")  # ]0, 1[
_WITHOUT = re.compile(r"(\\mathbb\s*\{?[RQZNC]\}?)\s*-\s*(?=\\\{)")
_TOP_LEVEL_COMMA = re.compile(r",(?![^{(\[]*[})\]])")
_FLIPPED = {
    sympy.StrictLessThan: sympy.StrictGreaterThan, sympy.LessThan: sympy.GreaterThan,
    sympy.StrictGreaterThan: sympy.StrictLessThan, sympy.GreaterThan: sympy.LessThan,
    sympy.Equality: sympy.Equality, sympy.Unequality: sympy.Unequality,
}  # fmt: skip


class Joined(NamedTuple):
    """Parts, as texts or as expressions, and the word between them: "or", "and", or "," for either."""

    word: str
    parts: tuple[Any, ...]

    @property
    def is_one(self) -> bool:
        """Whether the parts are one statement, rather than a list of values."""
        if all(isinstance(part, sympy.Eq) for part in self.parts):
            return self.word == "or" and len({part.lhs for part in self.parts}) > 1
        return any(
            isinstance(part, Relational | And) and not isinstance(part, sympy.Eq) for part in self.parts
        )


def split_at_words(text: str) -> Joined | None:
    """Returns the parts of a cleaned text that `or` or `and` joins; None if there are none or both words."""
    words = {(match[1] or match[2] or match[3]).lower().removeprefix("l") for match in _WORD.finditer(text)}
    parts = tuple(part.strip(" $,") for part in _WORD.split(text)[:: _WORD.groups + 1])
    if len(words) != 1 or len(parts) > MAX_PARTS or not all(parts):
        return None
    return Joined(words.pop(), parts)


def set_built(text: str) -> str | None:
    r"""Returns the condition in `\{x : condition\}`."""
    match = _SET_BUILT.fullmatch(text)
    return match[2] if match is not None else None


def in_known_notation(text: str) -> str:
    r"""Returns `text` with `]0, 1[` as `(0, 1)`, with `\setminus`, and with both values of an inner `\pm`."""
    if text.startswith("]") or text.endswith("["):
        text = _OPEN.sub(lambda ends: "[("[ends[1] == "]"] + ends[2] + "])"[ends[3] == "["], text)
    text = _MEMBER.sub("", _WITHOUT.sub(r"\1 \\setminus ", text))
    before, sign, _ = text.partition("\\pm")
    if sign and before.count("{") > before.count("}") and _TOP_LEVEL_COMMA.search(text) is None:
        swapped = text.replace("\\mp", "\0").replace("\\pm", "-").replace("\0", "+")
        return text.replace("\\pm", "+").replace("\\mp", "-") + ", " + swapped
    return text


def same_conditions(gold: Any, answer: Any, equal: Callable[[Any, Any], bool]) -> bool | None:
    """Whether both state the same condition or set; None if neither does, or another comparison decides."""
    first, second = _joined(gold), _joined(answer)
    if first is None and second is None:
        return None
    if any(len(_names(one)) == 1 for one in (first or gold, second or answer)):
        names = _names(first or gold) | _names(second or answer)
        sets = _sets(first, gold), _sets(second, answer)
        if len(names) <= 1 and any(one == other for one, other in itertools.product(*sets)):
            return True
    if not isinstance(gold, Joined) and not isinstance(answer, Joined):
        return None
    if first is None or second is None or len(first.parts) != len(second.parts):
        return False
    if first.word != second.word and "," not in (first.word, second.word):
        return False
    return any(
        all(itertools.starmap(equal, zip(first.parts, order, strict=True)))
        for order in itertools.permutations(second.parts)
    )


def as_set(expression: Any) -> Any:
    """Returns the set of reals that a condition on one variable states; None if it is something else."""
    joined = _joined(expression)
    sets = _sets(joined, None) if joined is not None and joined.word != "," else []
    return sets[0] if sets else None


def _joined(expression: Any) -> Joined | None:
    if isinstance(expression, Joined):
        return expression
    if isinstance(expression, And):
        parts = getattr(expression, "_unsorted_args", expression.args)
        return Joined("and", tuple(parts)) if not all(isinstance(part, sympy.Eq) for part in parts) else None
    if isinstance(expression, Relational):
        return Joined("and", (expression,)) if not isinstance(expression, sympy.Eq) else None
    if isinstance(expression, sympy.FiniteSet | sympy.Tuple) and expression.args:
        conditions = [isinstance(part, Relational | And) for part in expression.args]
        is_list_of_values = all(isinstance(part, sympy.Eq) for part in expression.args)
        if all(conditions) and not is_list_of_values and len(conditions) <= MAX_PARTS:
            return Joined(",", tuple(getattr(expression, "_unsorted_args", expression.args)))
    return None


def _names(expression: Any) -> set[str]:
    parts = expression.parts if isinstance(expression, Joined) else (expression,)
    return {symbol.name for part in parts for symbol in getattr(part, "free_symbols", ())}


def _sets(joined: Joined | None, expression: Any) -> list[Any]:
    """Returns the sets that conditions may mean; for anything else the set that it is."""
    if joined is None:
        return [_evaluated(_exact(expression))] if isinstance(expression, sympy.Set) else []
    parts = [as_set(part) if isinstance(part, And) else _solved(part) for part in joined.parts]
    if None in parts:
        return []
    words = ("or", "and") if joined.word == "," else (joined.word,)
    return [sympy.Union(*parts) if word == "or" else sympy.Intersection(*parts) for word in words]


def _solved(condition: Any) -> Any:
    """Returns the set of a condition that has a variable, or its distance from a number, on one side and a
    number on the other; None for any other condition, which would leave something to compute.
    """
    if not isinstance(condition, Relational):
        return None
    kind: Any = type(condition)
    left, right = condition.lhs, condition.rhs
    if not left.free_symbols:
        kind, left, right = _FLIPPED.get(kind), right, left
    if kind is None or right.free_symbols or not operations(right) <= {"irrational"}:
        return None
    end = _exact(right)
    if isinstance(left, sympy.Symbol):
        return _half_line(kind, end)
    inner = left.args[0] if isinstance(left, sympy.Abs) else None
    if inner is None or len(inner.free_symbols) != 1 or not end.is_positive:
        return None
    center = -_exact(inner - next(iter(inner.free_symbols)))
    if center.free_symbols or kind in (sympy.Equality, sympy.Unequality):
        return None
    is_near = kind in (sympy.StrictLessThan, sympy.LessThan)
    inside, outside = _half_line(kind, center + end), _half_line(_FLIPPED[kind], center - end)
    return sympy.Intersection(inside, outside) if is_near else sympy.Union(inside, outside)


def _half_line(kind: Any, end: Any) -> Any:
    if kind is sympy.Equality:
        return sympy.FiniteSet(end)
    below = sympy.Interval(-sympy.oo, end, True, kind is not sympy.LessThan)
    above = sympy.Interval(end, sympy.oo, kind is not sympy.GreaterThan, True)
    if kind is sympy.Unequality:
        return sympy.Union(below, above)
    return below if kind in (sympy.StrictLessThan, sympy.LessThan) else above


def _evaluated(set_: Any) -> Any:
    """Returns the set as sympy writes it; the library's classes leave unions unevaluated."""
    for kind in (sympy.Union, sympy.Intersection, sympy.FiniteSet):
        if isinstance(set_, kind):
            return kind(*map(_evaluated, set_.args))
    return set_


def _exact(expression: Any) -> Any:
    """Returns `expression` with its decimals as fractions."""
    decimals = expression.atoms(sympy.Float)
    return expression.xreplace({decimal: sympy.Rational(str(decimal)) for decimal in decimals})
