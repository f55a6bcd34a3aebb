r"""Operations that an answer leaves to the reader. Runs only in workers.

If the gold answer is a number, `12 \cdot 13`, `\binom{5}{2}` or `\int_0^1 2x dx` is the problem rather
than its answer: a policy that copies expressions from the prompt would be rewarded. So an answer is in closed
form: fractions, powers, roots, logarithms, `e`, `\pi`, `i`, and sums and products whose parts cannot be
combined (`2\sqrt{3}`, `1 + \sqrt{2}`, `3 \cdot 10^5`, `2^{10}`). If the gold answer is rational, all parts
can be combined (`\sqrt{8} \cdot \sqrt{2}`). Any other operation, and a variable, may occur in an answer
only if the gold answer has one of its kind. Golds with variables, and matrices, take any expression that is
equal.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import is_expr_of_only_symbols
from sympy.core.relational import Relational
from sympy.functions.combinatorial.factorials import CombinatorialFunction
from sympy.functions.elementary.trigonometric import InverseTrigonometricFunction, TrigonometricFunction
from sympy.logic.boolalg import Boolean

from bapo_lightning.extras.math.relations import sides_of

_CLOSED = (
    sympy.Number, sympy.NumberSymbol, type(sympy.I), sympy.Symbol, sympy.exp, sympy.log, sympy.Tuple,
    sympy.Set, Boolean, Relational,
)  # fmt: skip
_IRRATIONAL = (
    sympy.NumberSymbol, type(sympy.I), sympy.Symbol, sympy.exp, sympy.log, TrigonometricFunction,
    InverseTrigonometricFunction,
)  # fmt: skip
_IMAGINARY_UNIT = "i"  # a symbol, as it is read
_KINDS = (
    ("arithmetic", (CombinatorialFunction, sympy.gamma, sympy.UnevaluatedExpr)),
    ("trigonometry", (TrigonometricFunction, InverseTrigonometricFunction)),
)
_HUNDREDTH = sympy.UnevaluatedExpr(sympy.Rational(1, 100))  # how a percentage is read


def is_evaluated(gold: Any, answer: Any) -> bool:
    """Whether `answer` leaves open only operations that `gold` has; always if `gold` is not numbers."""
    gold = _stated(gold)
    if not isinstance(gold, sympy.Basic) or _has_variables(gold) or isinstance(gold, sympy.MatrixExpr):
        return True
    allowed = operations(gold)
    if _is_irrational(gold) or gold.has(sympy.Float):
        allowed |= {"irrational"}
    return operations(answer) <= allowed


def operations(expression: Any) -> frozenset[str]:
    """Returns the kinds of operations in `expression` that a rational number in closed form does not have.

    Arithmetic is one kind: a gold answer that is a product may be answered by a binomial.
    """
    kinds: set[str] = set()
    waiting = [_stated(expression)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, sympy.Basic) and node != _HUNDREDTH:
            kinds |= _kinds(node)
            waiting += map(_stated, node.args)
    return frozenset(kinds)


def _stated(expression: Any) -> Any:
    """Returns the result of an equation of numbers or a chain of them (`x = 2 + 3 = 5`), its last side."""
    if sides := sides_of(expression):
        is_name = is_expr_of_only_symbols(sides[0])
        return sides[-1] if is_name or not _has_variables(sides[0]) else expression
    if isinstance(expression, sympy.FiniteSet | sympy.Tuple):
        return type(expression)(*map(_stated, expression.args))
    return expression


def _kinds(node: Any) -> set[str]:
    if isinstance(node, _CLOSED):
        return set()
    if isinstance(node, sympy.Add | sympy.Mul | sympy.Pow):
        if _has_variables(node):
            return {"variables"}
        return _kinds_of_sum(node) if isinstance(node, sympy.Add) else _kinds_of_product(node)
    return {next((kind for kind, types in _KINDS if isinstance(node, types)), type(node).__name__)}


def _has_variables(expression: Any) -> bool:
    return any(symbol.name != _IMAGINARY_UNIT for symbol in expression.free_symbols)


def _is_irrational(expression: Any) -> bool:
    for node in sympy.preorder_traversal(expression):
        if isinstance(node, sympy.Pow):
            exponent = _rational(node.exp)
            is_root = exponent is None or exponent.q != 1
            if is_root and _rational(node) is None:
                return True
        elif isinstance(node, _IRRATIONAL):
            return True
    return False


def _kinds_of_sum(sum_: Any) -> set[str]:
    r"""Returns "arithmetic" if two terms are multiples of the same (`2 + 3`, `3^2 + 4^2`,
    `2\sqrt{3} + 3\sqrt{3}`, `(3 - 2i) - (5 - 2i)`), and "irrational" if one is irrational.
    """
    rests = list(itertools.chain.from_iterable(map(_irrational_parts, sum_.args)))
    kinds = {"arithmetic"} if len(set(rests)) < len(rests) else set()
    return kinds | {"irrational"} if _is_irrational(sum_) else kinds


def _irrational_parts(term: Any) -> Iterator[frozenset[tuple[Any, int]]]:
    """Yields the irrational factors of a term, or of each summand if it is a multiple of a sum."""
    rest = Counter(part for part in _factors(term) if _rational(part) is None)
    if len(rest) == 1 and isinstance(inner := next(iter(rest)), sympy.Add):
        for part in inner.args:
            yield from _irrational_parts(part)
    else:
        yield frozenset(rest.items())


def _kinds_of_product(product: Any) -> set[str]:
    r"""Returns "arithmetic" if there are two numbers (`12 \cdot 13`) or two sums (`(1 + i)(2 - i)`) above or
    below the fraction line, or a division without remainder (`84/2`), and "irrational" if one of several
    factors is irrational. Signs do not count, nor does one power of ten.
    """
    parts = _factors(product)
    tens = [part for part in parts if _is_power_of_ten(part)]
    if len(tens) == 1:
        parts.remove(tens[0])
    values = [value for part in parts if (value := _rational(part)) is not None]
    above = [abs(value.p) for value in values if abs(value.p) != 1]
    below = [value.q for value in values if value.q != 1]
    sums = Counter(_is_inverse(part) for part in parts if isinstance(_base(part), sympy.Add))
    comes_out = len(above) == len(below) == 1 and above[0] % below[0] == 0
    is_open = max(len(above), len(below), *sums.values(), 0) > 1 or comes_out
    kinds = {"arithmetic"} if is_open else set()
    return kinds | {"irrational"} if len(parts) > 1 and _is_irrational(product) else kinds


def _factors(node: Any) -> list[Any]:
    """Returns the factors of nested products and divisors, without signs and per cents; or only `node`."""
    if _is_inverse(node) and isinstance(node.base, sympy.Mul):
        return [sympy.Pow(part, -1, evaluate=False) for part in _factors(node.base)]
    if not isinstance(node, sympy.Mul):
        return [node]
    parts = (part for argument in node.args for part in _factors(argument))
    return [part for part in parts if part not in (sympy.S.NegativeOne, _HUNDREDTH)]


def _is_inverse(node: Any) -> bool:
    return isinstance(node, sympy.Pow) and node.exp == -1


def _base(node: Any) -> Any:
    return node.base if _is_inverse(node) else node


def _is_power_of_ten(node: Any) -> bool:
    power = _base(node)
    return isinstance(power, sympy.Pow) and power.base == 10 and _rational(power) is not None


def _rational(node: Any) -> Any:
    """Returns the rational number that `node`, which is not a sum, is; None if it is not one."""
    if isinstance(node, sympy.Float):
        return sympy.Rational(node)
    if isinstance(node, sympy.Pow | sympy.Mul):
        parts = [_rational(part) for part in node.args]
        node = None if None in parts else node.func(*parts)
    return node if isinstance(node, sympy.Rational) else None
