"""An exact calculator that refuses long computations before it starts."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from decimal import Context, Decimal, InvalidOperation
from fractions import Fraction

from bapo_lightning.environments.tools import ToolResult

MAX_LENGTH = 500  # characters of an expression
MAX_DEPTH = 120  # of operations inside operations
MAX_BITS = 4096  # of a numerator or denominator on the way
DIGITS = 12  # shown of a result that is not an integer
_ROOT_BITS = 200  # of a root that is not exact
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "^": "**"})

_OPERATIONS: dict[type, Callable[[Fraction, Fraction], Fraction | int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: lambda base, exponent: power(base, exponent),
}
_SHOWN = Context(prec=DIGITS)


class NotComputable(ValueError):
    """An expression that is not computed; the text is for the policy."""


class Calculator:
    """Tool that computes `+ - * / // % **` and parentheses, `sqrt`, `abs`, `min` and `max`.

    Numbers are fractions, and `//` and `%` round down as in Python. A result is an integer with all of its
    digits, or a decimal with twelve significant ones. Roots that are not exact are good to sixty digits.
    """

    is_pure = True

    def __call__(self, argument: str) -> ToolResult:
        """Returns the value, or what is wrong with the expression."""
        try:
            return ToolResult(shown(value_of(argument)))
        except NotComputable as error:
            return ToolResult(f"Error: {error}.", failed=True)


def value_of(text: str) -> Fraction:
    """Returns the value of an expression. Raises NotComputable if it has none here."""
    if len(text) > MAX_LENGTH:
        raise NotComputable(f"an expression has at most {MAX_LENGTH} characters")
    text = text.translate(_SIGNS).strip().removesuffix("=").strip()
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise NotComputable("this is no arithmetic expression") from None
    return _value(tree.body, text, MAX_DEPTH)


def shown(value: Fraction) -> str:
    """Returns a value as text."""
    if value.denominator == 1:
        return str(value.numerator)
    rounded = _SHOWN.divide(Decimal(value.numerator), Decimal(value.denominator)).normalize(_SHOWN)
    return format(rounded, "f" if -DIGITS <= rounded.adjusted() < DIGITS else "e")


def power(base: Fraction, exponent: Fraction) -> Fraction:
    """Returns a power; the exponent is an integer, or half of one. Raises NotComputable if too large."""
    if base == 0 and exponent < 0:
        raise NotComputable("division by zero")
    if exponent.denominator == 2:
        return power(root(base), exponent * 2)
    if exponent.denominator != 1:
        raise NotComputable("the exponent of a power must be an integer or half of one")
    if base not in (-1, 0, 1) and _bits(base) * abs(exponent) > 2 * MAX_BITS:
        raise NotComputable("a number is too large")
    return base ** (int(exponent) if abs(base) != 1 else int(exponent) % 2)


def root(value: Fraction) -> Fraction:
    """Returns the square root: exact if it is a fraction, otherwise rounded down."""
    if value < 0:
        raise NotComputable("a negative number has no root")
    exact = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
    if exact * exact == value:
        return exact
    scale = 2 * max(_ROOT_BITS, _ROOT_BITS + value.denominator.bit_length() - value.numerator.bit_length())
    return Fraction(math.isqrt((value.numerator << scale) // value.denominator), 1 << scale // 2)


_FUNCTIONS: dict[str, Callable[[list[Fraction]], Fraction]] = {
    "sqrt": lambda values: root(_only(values)),
    "abs": lambda values: abs(_only(values)),
    "min": min,
    "max": max,
}


def _value(node: ast.expr, text: str, depth: int) -> Fraction:
    if depth == 0:
        raise NotComputable(f"operations are nested at most {MAX_DEPTH} deep")
    result = Fraction(_computed(node, text, depth - 1))
    if _bits(result) > MAX_BITS:
        raise NotComputable("a number is too large")
    return result


def _computed(node: ast.expr, text: str, depth: int) -> Fraction | int:
    match node:
        case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
            return _number(ast.get_source_segment(text, node) or "")
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, text, depth)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand, text, depth)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            values = _value(left, text, depth), _value(right, text, depth)
            try:
                return _OPERATIONS[type(op)](*values)
            except ZeroDivisionError:
                raise NotComputable("division by zero") from None
        case ast.Call(func=ast.Name(id=name), args=[_, *_], keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name]([_value(argument, text, depth) for argument in node.args])
    raise NotComputable(f"only numbers, + - * / // % ** ( ) and {', '.join(_FUNCTIONS)} are known")


def _number(text: str) -> Fraction:
    """Returns a literal as it is written, not as the nearest binary number."""
    try:
        number = Decimal(text)
    except InvalidOperation:  # 0x1F
        raise NotComputable("numbers are written in decimal digits") from None
    if number and abs(number.adjusted()) > MAX_BITS // 4:
        raise NotComputable("a number is too large")
    return Fraction(number)


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _only(values: list[Fraction]) -> Fraction:
    if len(values) != 1:
        raise NotComputable("sqrt and abs take one number")
    return values[0]
