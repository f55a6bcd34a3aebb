"""Answers that are equations (chains that must hold, lists of named values), and the equality of two values.
Runs only in workers.

math-verify rounds decimals to six places and drops differences below 1e-15, which makes every small number
equal to 0. `values_equal` replaces that comparison wherever math-verify makes it (numbers alone, in lists,
tuples, intervals, matrices): exact values must be exactly equal, and if one side has a decimal, both must
agree by `quick.agree`, the one rule for decimals.
"""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import is_expr_of_only_symbols
from latex2sympy2_extended.logic import And
from math_verify import grader
from math_verify.grader import get_pct_val, safe_sympy_doit

from bapo_lightning.extras.math.quick import agree


def chain_of(sides: list[Any]) -> Any:
    """Returns the equation of the numbers among `sides`; None if the last is unreadable or the only one."""
    if len(sides) < 2 or sides[-1] is None:
        return None
    known = [side for side in sides[:-1] if _is_number(side)]
    equations = [sympy.Eq(side, sides[-1], evaluate=False) for side in known]
    return And(*equations) if len(equations) > 1 else (equations or [sides[-1]])[0]


def holds(expression: Any) -> bool:
    """Whether all numbers in a chain of equations are equal: `2 + 3 = 5` holds, `x = 6 = 5` does not.

    An equation of anything else holds, as nothing contradicts it. So does a list if all its items do.
    """
    if isinstance(expression, sympy.FiniteSet | sympy.Tuple):
        return all(map(holds, expression.args))
    sides = [side for side in sides_of(expression) if _is_number(side)]
    return all(itertools.starmap(roughly_equal, itertools.pairwise(sides)))


def in_one_order(gold: Any, answer: Any) -> tuple[Any, Any]:
    """Returns both; as tuples, which have an order, if only one names its values (`x = 1, y = 2`)."""
    names = _named_values(gold), _named_values(answer)
    known = _equated_names(gold), _equated_names(answer)
    if all(known) and known[0] != known[1]:
        return gold, sympy.nan  # x = 1 or x = -1 is not x = 1, y = -1
    if (names[0] is None) == (names[1] is None):
        return gold, answer
    return names[0] or _as_tuple(gold), names[1] or _as_tuple(answer)


def in_one_shape(gold: Any, answer: Any) -> tuple[Any, Any]:
    """Returns both, as tuples of coordinates if one is a row or column of a matrix and the other is not."""
    vectors = [isinstance(side, sympy.MatrixBase) and 1 in side.shape for side in (gold, answer)]
    if sum(vectors) != 1 or any(isinstance(side, sympy.MatrixExpr) for side in (gold, answer)):
        return gold, answer
    return tuple(
        sympy.Tuple(*side) if is_vector else side
        for side, is_vector in zip((gold, answer), vectors, strict=True)
    )


def with_imaginary_unit(expression: Any) -> Any:
    """Returns `expression` with the number `i` in place of the symbol."""
    names = {symbol: sympy.I for symbol in getattr(expression, "free_symbols", ()) if symbol.name == "i"}
    return expression.xreplace(names) if names else expression


def with_split_logarithms(expression: Any) -> Any:
    r"""Returns `expression` with `2 \ln x` in place of `\ln x^2`, as for positive numbers."""
    if not isinstance(expression, sympy.Basic):
        return expression
    return expression.replace(sympy.log, lambda *of: sympy.expand_log(sympy.log(*of), force=True))


def sides_of(expression: Any) -> list[Any]:
    """Returns the sides of an equation or a chain of them, in order; none for anything else."""
    parts = getattr(expression, "_unsorted_args", None) if isinstance(expression, And) else [expression]
    if not parts or not all(isinstance(part, sympy.Eq) for part in parts):
        return []
    return [parts[0].lhs, *(part.rhs for part in parts)]


def _is_number(side: Any) -> bool:
    return isinstance(side, sympy.Expr) and not side.free_symbols and side.is_number


def _named_values(expression: Any) -> Any:
    """Returns the tuple of the values of variables with different names; None if there is no such list.

    Names that differ only in their subscript (the two roots x_1 and x_2) are one name.
    """
    items = getattr(expression, "_unsorted_args", ()) if isinstance(expression, sympy.FiniteSet) else ()
    if len(items) < 2 or not all(
        isinstance(item, sympy.Eq) and is_expr_of_only_symbols(item.lhs) for item in items
    ):
        return None
    names = _equated_names(expression)
    return sympy.Tuple(*(item.rhs for item in items)) if len(names) == len(items) else None


def _equated_names(expression: Any) -> set[str]:
    """Returns the names, without subscripts, that a list of equations gives values."""
    items = expression.args if isinstance(expression, sympy.FiniteSet) else ()
    is_list = all(isinstance(item, sympy.Eq) and is_expr_of_only_symbols(item.lhs) for item in items)
    return {str(item.lhs).partition("_")[0] for item in items} if is_list else set()


def _as_tuple(expression: Any) -> Any:
    if isinstance(expression, sympy.FiniteSet) and hasattr(expression, "_unsorted_args"):
        return sympy.Tuple(*expression._unsorted_args)
    return expression


_COMPUTED = (sympy.Integral, sympy.Sum, sympy.Product, sympy.Limit, sympy.Derivative)
_DIGITS, _FEW_DIGITS = 40, 15  # evaluated of a closed form, and if it takes numerical integration
_MOST_DIGITS = 4000  # before the point
_SAME, _NEARLY_SAME = Fraction(1, 10**30), Fraction(1, 10**11)  # negligible relative differences
_ZERO = Fraction(1, 10**90)  # largest remainder of an exact zero
_CHOP = 1e-40
_ROUNDED = Fraction(1, 100)

Complex = tuple[Fraction, Fraction]  # real and imaginary part


def values_equal(first: Any, second: Any, float_rounding: int = 6, numeric_precision: int = 15) -> bool:
    """Whether two expressions have the same value; False if numbers cannot decide.

    The other two arguments are math-verify's and unused. A percentage equals its number and its hundredth.
    """
    if isinstance(first, sympy.MatrixBase | sympy.MatrixExpr):
        return _matrices_equal(safe_sympy_doit(first), safe_sympy_doit(second))
    if not isinstance(first, sympy.Expr) or not isinstance(second, sympy.Expr):
        return False
    if first.free_symbols or second.free_symbols:
        return _formulas_equal(first, second)
    percents = get_pct_val(first), get_pct_val(second)
    if (percents[0] is None) != (percents[1] is None) and _numbers_equal(
        percents[0] or first, percents[1] or second
    ):
        return True
    return _numbers_equal(first, second)


def roughly_equal(first: Any, second: Any) -> bool:
    """Whether two numbers are equal, or at most 1 % apart if one has a decimal, which may be rounded."""
    if values_equal(first, second) or not _has_decimal(first, second):
        return values_equal(first, second)
    one, other = _value(first), _value(second)
    return one is not None and other is not None and _near(one, other, _ROUNDED)


def _matrices_equal(first: Any, second: Any) -> bool:
    if not isinstance(first, sympy.MatrixBase) or not isinstance(second, sympy.MatrixBase):
        return False
    entries = zip(first.flat(), second.flat(), strict=False)
    return first.shape == second.shape and all(values_equal(*pair) for pair in entries)


def _formulas_equal(first: Any, second: Any) -> bool:
    """Whether the difference of two expressions with variables vanishes, without simplifying it."""
    try:
        chop = True if _has_decimal(first, second) else _CHOP
        return bool((first - second).evalf(_FEW_DIGITS, chop=chop) == 0)
    except Exception:  # whatever sympy raises on expressions that cannot be subtracted
        return False


def _numbers_equal(first: Any, second: Any) -> bool:
    first, second = safe_sympy_doit(first), safe_sympy_doit(second)
    if first.is_Rational and second.is_Rational:
        return bool(first == second)
    one, other = _value(first), _value(second)
    if one is None or other is None:
        return False
    if _has_decimal(first, second):
        return agree(one[0], other[0], True) and agree(one[1], other[1], True)
    if first.has(*_COMPUTED) or second.has(*_COMPUTED):
        return _near(one, other, _NEARLY_SAME)
    return _near(one, other, _SAME) and _near_in_full(first, second, max(map(abs, one)))


def _near_in_full(first: Any, second: Any, size: Fraction) -> bool:
    """Whether two large numbers agree after the point as well: e^100 is not e^100 + 1."""
    digits = len(str(int(size)))
    if digits < _DIGITS // 4 or digits > _MOST_DIGITS:
        return True
    one, other = (_value(number, _DIGITS + digits) for number in (first, second))
    return one is not None and other is not None and _near(one, other, _SAME / 10**digits)


def _has_decimal(first: Any, second: Any) -> bool:
    return bool(first.has(sympy.Float) or second.has(sympy.Float))


def _value(number: Any, all_digits: int = _DIGITS) -> Complex | None:
    """Returns the value of an expression without variables; None if it is not finite or has none."""
    try:
        digits = _FEW_DIGITS if number.has(*_COMPUTED) else all_digits
        real, imaginary = (_fraction(part) for part in number.evalf(digits).as_real_imag())
    except Exception:  # whatever sympy raises on expressions that have no value
        return None
    if abs(imaginary) <= _SAME * abs(real):
        return real, Fraction(0)
    return (Fraction(0) if abs(real) <= _SAME * abs(imaginary) else real), imaginary


def _fraction(number: Any) -> Fraction:
    exact = sympy.Rational(number)  # raises if it is not a finite number
    fraction = Fraction(int(exact.p), int(exact.q))
    return Fraction(0) if abs(fraction) < _ZERO else fraction


def _near(first: Complex, second: Complex, relative: Fraction) -> bool:
    differences = (abs(one - other) for one, other in zip(first, second, strict=True))
    return max(differences) <= relative * max(map(abs, first + second))


if not hasattr(grader, "sympy_numeric_eq"):
    raise ImportError("math-verify has no sympy_numeric_eq any more; install the version of pyproject.toml")
grader.sympy_numeric_eq = values_equal
