import sys
import time
from fractions import Fraction

import pytest

from bapo_lightning.environments.calculator import MAX_BITS, Calculator, value_of
from bapo_lightning.environments.tools import ToolResult


@pytest.mark.parametrize(("expression", "value"), [
    ("347+586", "933"), ("2 + 3 * 4", "14"), ("(2 + 3) * -4", "-20"), ("0.1 + 0.2", "0.3"),
    ("1/3", "0.333333333333"), ("1/3 + 2/3", "1"), ("2/3 * 10**20", "6.66666666667e+19"), ("7 // 2", "3"),
    ("-7 % 3", "2"), ("7.5 % 2", "1.5"), ("2**-3", "0.125"), ("2^10", "1024"), ("12 × 3 ÷ 4 − 1", "8"),
    ("12*3=", "36"), ("1_000 + 1", "1001"), ("1e3 + 1.5e-3", "1000.0015"),
    ("0.10000000000000000000000001 - 0.1", "1e-26"), ("sqrt(2)", "1.41421356237"), ("sqrt(2.25)", "1.5"),
    ("4**1.5", "8"), ("abs(-3) + min(1, 2) + max(1, 2)", "6"), ("2**200", str(2**200)),
    ("(-1)**10**300", "1"), ("(1\n+\n2)", "3"),
])  # fmt: skip
def test_values(expression, value):
    assert Calculator()(expression) == ToolResult(value)


@pytest.mark.parametrize("number", [2, 3, 10**40 + 1, 10**-9, Fraction(1, 3)])
def test_roots_are_good_to_sixty_digits(number):
    number = Fraction(number)
    text = f"sqrt({number.numerator}/{number.denominator})"
    assert abs(value_of(text) ** 2 / number - 1) < Fraction(1, 10**59)


@pytest.mark.parametrize(("expression", "problem"), [
    ("1/0", "division by zero"), ("1//0", "division by zero"), ("1%0", "division by zero"),
    ("9**9**9", "Error: a number is too large."), ("0**-1", "division by zero"),
    ("sqrt(-1)", "a negative number has no root"),
    ("(-8)**(1/3)", "the exponent of a power must be an integer or half of one"),
    ("0x1F", "decimal digits"), ("sqrt(1, 2)", "sqrt and abs take one number"),
    ("", "no arithmetic expression"), ("1 +", "no arithmetic expression"),
    ("\0", "no arithmetic expression"), ("1,234 + 1", "only numbers"),
])  # fmt: skip
def test_what_is_wrong_is_said(expression, problem):
    result = Calculator()(expression)
    assert result.failed and problem in result.text


@pytest.mark.parametrize("expression", [
    "__import__('os').system('true')", "().__class__", "open('f')", "lambda: 1", "[1 for _ in (1,)]",
    "x := 1", "True + 1", "1j", "'a' * 9", "f'{1}'", "1 < 2", "1 if 1 else 2", "sqrt(*(1,))", "min()",
    "sqrt(x=1)", "sqrt", "1 and 2", "~1", "1 << 99", "{1}", "...", "None", "max(1)(2)", "abs.__self__",
])  # fmt: skip
def test_it_is_no_python(expression):
    result = Calculator()(expression)
    assert result.failed and result.text.startswith("Error: ")


@pytest.mark.parametrize("expression", [
    "9**9**9", "-9**9**9", "2**10**9", "0.5**10**9", "2**-10**9", "(1/3)**99999", "1e999999999",
    "1e-999999999", "sqrt(1e999999999)", "9**9**9**9**9**9**9", "10**500*10**500*10**500",
    "*".join(["9**999"] * 60), "+".join(f"1/{n}**99" for n in range(1, 60)), "(" * 240 + "1" + ")" * 240,
    "-" * 499 + "1", "1" * 501, "1" * 10**6, "1+" * 249 + "1",
    "2**4095 % 7 * 2**4095 * 2", "(2**4000)**1.5", "99**999 // 1e-1000",
])  # fmt: skip
def test_what_would_take_long_is_refused_at_once(expression):
    calculate = Calculator()
    calculate("1")
    spent = []
    for _ in range(3):  # the least of three: other processes share the cores
        begun = time.process_time()
        result = calculate(expression)
        spent.append(time.process_time() - begun)
    assert result.failed and min(spent) < 0.05
    assert sys.getrecursionlimit() > 100


def test_the_largest_number_is_shown_with_all_digits():
    assert Calculator()(f"2**{MAX_BITS - 1}") == ToolResult(str(2 ** (MAX_BITS - 1)))
    assert Calculator()(f"2**{MAX_BITS}").failed
