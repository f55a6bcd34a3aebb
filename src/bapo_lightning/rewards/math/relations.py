"""Answers that are equations: chains that must hold, and lists of named values. Runs in workers only."""

from __future__ import annotations

import itertools
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import is_expr_of_only_symbols
from latex2sympy2_extended.logic import And

from bapo_lightning.rewards.math.values import roughly_equal


def chain_of(sides: list[Any]) -> Any:
    """Returns the equation of the numbers among `sides`, of which the last must be readable: None if it is
    not, or is the only one.
    """
    if len(sides) < 2 or sides[-1] is None:
        return None
    known = [side for side in sides[:-1] if _is_number(side)]
    equations = [sympy.Eq(side, sides[-1], evaluate=False) for side in known]
    return And(*equations) if len(equations) > 1 else (equations or [sides[-1]])[0]


def holds(expression: Any) -> bool:
    """Whether all numbers in a chain of equations are equal: `2 + 3 = 5` holds, `x = 6 = 5` does not.

    An equation of anything else holds, as nothing says that it does not. So does a list if all its items do.
    """
    if isinstance(expression, sympy.FiniteSet | sympy.Tuple):
        return all(map(holds, expression.args))
    sides = [side for side in sides_of(expression) if _is_number(side)]
    return all(itertools.starmap(roughly_equal, itertools.pairwise(sides)))


def in_one_order(gold: Any, answer: Any) -> tuple[Any, Any]:
    """Returns both, as tuples if one of them names its values (`x = 1, y = 2`) and the other does not.

    Such a list has an order: it is not `2, 1`.
    """
    names = _named_values(gold), _named_values(answer)
    if (names[0] is None) == (names[1] is None):
        return gold, answer
    return names[0] or _as_tuple(gold), names[1] or _as_tuple(answer)


def sides_of(expression: Any) -> list[Any]:
    """Returns the sides of an equation or a chain of them, in order; none of anything else."""
    parts = getattr(expression, "_unsorted_args", None) if isinstance(expression, And) else [expression]
    if not parts or not all(isinstance(part, sympy.Eq) for part in parts):
        return []
    return [parts[0].lhs, *(part.rhs for part in parts)]


def _is_number(side: Any) -> bool:
    return isinstance(side, sympy.Expr) and not side.free_symbols and side.is_number


def _named_values(expression: Any) -> Any:
    """Returns the tuple of the values of variables with different names; None if there is no such list.

    Names that differ in their subscript only (the two roots x_1 and x_2) are one name.
    """
    items = getattr(expression, "_unsorted_args", ()) if isinstance(expression, sympy.FiniteSet) else ()
    if len(items) < 2 or not all(
        isinstance(item, sympy.Eq) and is_expr_of_only_symbols(item.lhs) for item in items
    ):
        return None
    names = {str(item.lhs).partition("_")[0] for item in items}
    return sympy.Tuple(*(item.rhs for item in items)) if len(names) == len(items) else None


def _as_tuple(expression: Any) -> Any:
    if isinstance(expression, sympy.FiniteSet) and hasattr(expression, "_unsorted_args"):
        return sympy.Tuple(*expression._unsorted_args)
    return expression
