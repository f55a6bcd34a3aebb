"""Refuses expressions whose value is too large to be computed, without computing it. Runs only in workers."""

from __future__ import annotations

import math
from typing import Any

import sympy

MAX_DIGITS = 1000  # of one number in the text
MAX_FLOAT_EXPONENT = 5000
MAX_BITS = 100_000.0  # of any number that evaluation would make
MAX_SYMBOLIC_EXPONENT = 1000  # (x + 1)^n is expanded into n + 1 terms
MAX_TERMS = 10_000  # of a sum or product with bounds
MAX_NODES = 2000
MAX_MATRIX_ENTRIES = 64
MAX_NESTING = 20  # of brackets; the time of the LaTeX grammar grows fast with it


class TooLarge(Exception):
    """Evaluation would not end, or its result would not fit."""


def check_nesting(text: str) -> None:
    """Raises TooLarge if brackets in `text` are, or bars may be, nested more than MAX_NESTING deep."""
    depth = deepest = 0
    for character in text:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth -= 1
    if deepest > MAX_NESTING or text.count("|") > 2 * MAX_NESTING:
        raise TooLarge("nested too deeply")


def check_size(expression: Any) -> None:
    """Raises TooLarge if `expression` could make a number beyond MAX_BITS, or a huge sum, tree or matrix."""
    if isinstance(expression, sympy.MatrixBase):
        if len(expression) > MAX_MATRIX_ENTRIES:
            raise TooLarge(f"a matrix of {len(expression)} entries")
        for entry in expression:
            check_size(entry)
        return
    if not isinstance(expression, sympy.Basic):
        return
    bits: dict[Any, float] = {}
    for count, node in enumerate(sympy.postorder_traversal(expression)):
        if count > MAX_NODES:
            raise TooLarge("an expression of too many terms")
        if isinstance(node, sympy.MatrixBase):
            check_size(node)
        bits[node] = _bits(node, bits)
        if bits[node] > MAX_BITS:
            raise TooLarge(f"a number of more than {MAX_BITS:.0f} bits")


def _bits(node: Any, bits: dict[Any, float]) -> float:
    """Upper estimate of log2 of the absolute value of `node`, at least 0; symbols count as 0."""
    parts = [bits.get(part, 0.0) for part in node.args]
    if isinstance(node, sympy.Rational):
        return float(max(abs(node.p).bit_length(), node.q.bit_length()))
    if isinstance(node, sympy.Float):
        if not node.is_finite:
            return 0.0
        _, _, exponent, mantissa_bits = sympy.Float(abs(node), 15)._mpf_
        return 1.0 + abs(float(exponent + mantissa_bits))
    if isinstance(node, sympy.Pow | sympy.exp):
        return _power_bits(node, bits)
    if isinstance(
        node, sympy.factorial | sympy.gamma | sympy.binomial | sympy.RisingFactorial | sympy.FallingFactorial
    ):
        return _magnitude(parts[0]) * max(parts[0], 1.0)
    if isinstance(node, sympy.Sum | sympy.Product | sympy.Integral):
        return _check_bounds(node, bits)
    if isinstance(node, sympy.Mul):
        return sum(parts)
    if isinstance(node, sympy.cosh | sympy.sinh):
        return 2 * _magnitude(parts[0])
    return max(parts, default=0.0) + math.log2(len(parts) + 1)


def _power_bits(node: Any, bits: dict[Any, float]) -> float:
    base, exponent = (sympy.E, node.args[0]) if isinstance(node, sympy.exp) else node.args
    size = _magnitude(bits.get(exponent, 0.0))
    if exponent.free_symbols:
        return bits.get(base, 0.0)
    if base.free_symbols:
        if size > 2 * MAX_SYMBOLIC_EXPONENT:
            raise TooLarge("a large power of an expression with variables")
        return bits.get(base, 0.0) * size
    return max(bits.get(base, 0.0), 1.0) * size


def _check_bounds(node: Any, bits: dict[Any, float]) -> float:
    ends = [end for limits in node.limits for end in limits[1:] if end.is_finite]
    is_integral = isinstance(node, sympy.Integral)
    if not is_integral and any(_magnitude(bits.get(end, 0.0)) > 2 * MAX_TERMS for end in ends):
        raise TooLarge("a sum or product of too many terms")
    return max((bits.get(part, 0.0) for part in node.args), default=0.0)


def _magnitude(bits: float) -> float:
    """2^bits, capped above every limit."""
    return 2.0 ** min(bits, 1000.0)
