from fractions import Fraction

import pytest

from bapo_lightning.extras.math.notation import clean
from bapo_lightning.extras.math.quick import normal_form, quick_verdict, read_number


@pytest.mark.parametrize(("text", "value"), [
    ("42", 42), ("-42", -42), ("−42", -42), ("+7", 7), ("007", 7), ("7.", 7), (".5", Fraction(1, 2)),
    ("1,234,567", 1_234_567), ("1{,}234", 1234), ("1 234 567", 1_234_567), (r"12\textbf{ meters}", 12),
    (r"1\,234", 1234), (r"11,\! 111,\! 100", 11_111_100), ("$1,000.99", Fraction(100_099, 100)),
    (r"\$36", 36), ("3/4", Fraction(3, 4)), (r"\frac{3}{4}", Fraction(3, 4)),
    (r"-\dfrac{3}{4}", Fraction(-3, 4)), (r"\frac{-3}{4}", Fraction(-3, 4)),
    (r"\tfrac34", Fraction(3, 4)), (r"\frac 3 4", Fraction(3, 4)), (r"1\frac{3}{4}", Fraction(7, 4)),
    (r"-1\frac{3}{4}", Fraction(-7, 4)), ("1.5e-3", Fraction(3, 2000)),
    (r"1.5 \times 10^{-3}", Fraction(3, 2000)), (r"90^\circ", 90), ("90°", 90),
    (r"125\text{ miles}", 125), (r"12\text{ cm}^2", 12), ("5 apples", 5), ("35 cm", 35), ("35cm^2", 35),
    ("7 square feet", 7), (r"\text{12}", 12), ("$12$", 12), (r"\(12\)", 12), ("**12**", 12),
    ("3 1/2", Fraction(7, 2)), ("-3 1/2", Fraction(-7, 2)), ("10^{-9}", Fraction(1, 10**9)),
    ("10^5", 10**5), ("5 million", 5_000_000), ("5 million dollars", 5_000_000),
    (r"1.5\text{ million}", 1_500_000), (r"\$3\text{ million dollars}", 3_000_000), ("5 hundred", 500),
    ("3 dozen", 36), ("50 miles per hour", 50), (r"12\text{ more apples}", 12), (r"\underline{5}", 5),
    (r"\boldsymbol{5}", 5), (r"\bm{\frac{1}{2}}", Fraction(1, 2)), (r"\color{red}{5}", 5),
    (r"\textcolor{red}{5}", 5), (r"{\color{red} 5}", 5), ("４２", 42), ("４.２", Fraction(21, 5)),
    ("٤٢", 42), ("४२", 42),
])  # fmt: skip
def test_numbers_are_read_exactly(text, value):
    number = read_number(clean(text))
    assert number is not None and number.value == value


@pytest.mark.parametrize("text", [
    "", "x", "x=5", "6m", "4t", "1, 2", "(1, 2)", "1/0", "12:00", "5!", "2^3", "nan", "inf", "1e999",
    "9" * 500, "④", "⁴", "0x10", "1_000", "2 pi", "3 mod 4", "3 ab", "2 xyz", "2 sqrt", "5 millions",
    "5 hundred thousand", "5 halves", "3 7/2", r"5\text{ or six}", r"5\text{ and a half}",
    r"5\text{ is wrong}", r"5\text{ less than ten}", "3 squared", r"5\text{ pm}",
])  # fmt: skip
def test_what_is_no_plain_number_is_left_to_algebra(text):
    assert read_number(clean(text)) is None


@pytest.mark.parametrize(("gold", "answer", "equal"), [
    ("5", "5.0", True), ("5", "5.1", False), (r"\frac{1}{2}", "0.5", True),
    (r"\frac{1}{3}", "0.333333", True), (r"\frac{1}{3}", "0.333", False),
    (r"\frac{1}{3}", "333333/1000000", False), ("2/3", "0.666667", True), ("2/3", "0.666666", False),
    ("1e-9", "10^{-9}", True), ("10^{-7}", "0.0000002", False), ("0.999999999", "1", True),
    ("999999999/1000000000", "1.0", False), ("42", "84/2", False), (r"\frac{84}{2}", "42", True),
    (r"\frac{84}{2}", r"\frac{168}{4}", True), ("2/3", "4/6", True), ("5.3e-9", "1e-9", False),
    ("28%", "0.28", True), ("28%", "28", True), ("28%", r"28\%", True), ("28%", "2800%", False),
    ("7425000", "7,425,000", True), ("50,625", "2500", False), (r"\text{Evelyn}", "Evelyn", True),
    (r"\text{(C)}", "C", True), (r"\text{East}", "east", True), ("east", "seat", False),
    ("no", "on", False), ("Softball, Picnic", "picnic and softball", True), ("xy", "yx", None),
    ("xy", "x y", None), ("a, b", "b, a", None), ("pi", "e", None),
    ("8:34 p.m.", r"8:34\text{ PM}", True), ("8:34 p.m.", "8:34", True), ("3 p.m.", "3 a.m.", False),
    (r"\frac{1}{3}", "10:30", False), ("7/38", "7:38", None), ("(1,2)", r"\{1,2\}", False),
    ("(1,2)", "1,2", None), ("(-\\infty,3)", r"\{x : x < 3\}", None), (r"\sqrt{2}", r"\sqrt2", None),
    (r"2\sqrt{3}", r"2 \sqrt{ 3 }", True), ("x+1", "x + 1", True), ("12", "1 2", None),
    ("204_5", "204_{5}", True), ("204_5", "204_6", False), ("1010_2", "12_8", False),
    ("0012_8", "12_8", True), ("204_5", "204", None), ("4", r"\sqrt{16}", None), ("", "", False),
    (r"2\text{ rad}", r"2^\circ", False), (r"60^\circ", r"60\%", False), (r"60^\circ", "60", True),
])  # fmt: skip
def test_a_quick_verdict_is_right_or_left_open(gold, answer, equal):
    assert quick_verdict(clean(gold), clean(answer)) is equal


def test_what_is_not_evaluated_may_be_accepted():
    assert quick_verdict("42", "84/2", refuse_unevaluated=False)
    assert quick_verdict("1010_2", "12_8", refuse_unevaluated=False)


@pytest.mark.parametrize(("vote", "forms"), [
    ("1/2", ["0.5", ".50", r"\frac{1}{2}", r"\frac12", "1/2", "$\\dfrac{2}{4}$", r"\boxed{0.5}"]),
    ("(1,2)", [r"\left( 1,\, 2 \right)", "(1,2)"]), ("east", [r"\text{east}", "east"]),
])  # fmt: skip
def test_equal_numbers_and_equal_texts_vote_for_one_answer(vote, forms):
    assert [normal_form(clean(form)) for form in forms] == [vote] * len(forms)
