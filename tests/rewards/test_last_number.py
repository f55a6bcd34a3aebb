import pytest

from bapo_lightning.rewards.final_value import final_value
from bapo_lightning.rewards.last_number import (
    canonical,
    final_number,
    first_number_in,
    last_number,
    last_number_in,
    whole_number_text,
)
from bapo_lightning.system.errors import DataError
from bapo_lightning.types import Completion, FinishReason, Problem, Score, ScoreStatus

PROBLEM = Problem(id="sums/0", prompt="", answer="1,234")
UNPARSABLE = Score(0.0, ScoreStatus.UNPARSABLE)


def correct(answer):
    return Score(1.0, ScoreStatus.CORRECT, answer)


def wrong(answer):
    return Score(0.0, ScoreStatus.WRONG, answer)


@pytest.mark.parametrize(("text", "expected"), [
    ("3 pens and 4 make 7", "7"), ("so 7.\n#### 8\nfrom 9 pens", "8"), ("#### 5\n#### 6", "6"),
    ("#### none, so 5", "5"), ("\\boxed{4} or rather \\boxed{5}, of 9", "5"),
    ("\\boxed{x = \\frac{10}{2} = 5} of 9", "5"), ("\\boxed{1{,}234} of 9", "1234"),
    ("\\boxed{\\text{none}} of 9", "9"), ("\\boxed{5 of 9", "9"), ("\\boxed{5}\n#### 6", "6"),
    ("#### of \\boxed{7}", "7"), ("no idea", None), ("so 5, which is 1e5", None), ("\\boxed{1e5}", None),
    ("\\boxed{1, 2, 3, 5}", "5"), ("#### 5 or 6", "5"), ("the answer is not 5", "5"),
])  # fmt: skip
def test_the_number_a_response_settles_on(text, expected):
    assert final_number(text) == expected


@pytest.mark.parametrize(("text", "score"), [
    ("It is 1,234.", correct("1234")), ("1234.00", correct("1234")), ("#### $1,234", correct("1234")),
    ("1234 of 1235", wrong("1235")), ("-1234", wrong("-1234")), ("I give up", UNPARSABLE),
    ("9" * 5000, UNPARSABLE),
])  # fmt: skip
def test_a_response_is_right_when_its_number_is_the_gold_answer(text, score):
    assert last_number([PROBLEM], [Completion(text, 3, FinishReason.STOP)]) == [score]


def test_a_cut_response_counts_unless_it_must_stop():
    cut = Completion("so 1234", 3, FinishReason.LENGTH)
    assert last_number([PROBLEM], [cut]) == [correct("1234")]
    assert last_number([PROBLEM], [cut], require_stop=True) == [UNPARSABLE]


def test_a_gold_answer_that_is_no_number_is_a_fault_of_the_data():
    with pytest.raises(DataError, match="problem b has the gold answer 'blue'"):
        last_number([Problem("b", "", "blue")], [Completion("7", 1, FinishReason.STOP)])


def test_each_completion_needs_its_problem():
    with pytest.raises(ValueError, match="got 1 problems and 0 completions"):
        last_number([PROBLEM], [])


@pytest.mark.parametrize(("text", "expected"), [
    ("1,234", "1234"), ("it is 12,345,678.", "12345678"), ("1,234.50", "1234.50"), ("1,23", "23"),
    ("(1, 2)", "2"), ("1,2345", "2345"), ("12345,678", "678"), ("-7", "-7"), ("3 - 10 = -7", "-7"),
    ("$-7$", "-7"), ("\N{MINUS SIGN}7", "-7"), ("**-7**", "-7"), ("9-7", "7"), ("9 - 7", "7"),
    ("(2)-7", "7"), ("covid-19", "19"), ("7.", "7"), ("7.0", "7.0"), ("=.5", ".5"), ("wait...5", "5"),
    ("+7", "7"), ("007", "007"), ("$7", "7"), ("7%", "7"), ("1/2", "2"), ("1e5", None),
    ("it is 2.5E-3", None), ("0x5", None), ("5 or 0b11", None), ("5e", "5"), ("10x5", "5"),
    ("seven", None), ("", None), ("-", None), ("\N{ARABIC-INDIC DIGIT SEVEN}", None),
    ("9" * 64, "9" * 64), ("9" * 65, None),
])  # fmt: skip
def test_the_last_number_of_a_text(text, expected):
    assert last_number_in(text) == expected


def test_the_first_number_of_a_text():
    assert [first_number_in(text) for text in (" 18\nso 3", "-4 or 5", "none")] == ["18", "-4", None]


def test_a_text_that_is_one_number_and_nothing_else():
    assert [whole_number_text(text) for text in (" 1,234 ", "-7", "7 apples", "1/2", "")] == [
        "1234", "-7", None, None, None,
    ]  # fmt: skip


def test_equal_numbers_have_one_form_and_no_others():
    texts = ("7.0", "007", "-0", "-0.0", ".10", "100", "-1.50", "0.333", ".3333", "1" * 63 + "2")
    forms = ["7", "7", "0", "0", "0.1", "100", "-1.5", "0.333", "0.3333", "1" * 63 + "2"]
    assert [canonical(text) for text in texts] == forms


def test_a_long_hostile_text_is_read_in_linear_time():
    assert last_number_in("1,111" * 200_000 + " -" * 200_000) == "111"  # a quadratic reader takes hours


@pytest.mark.parametrize(("text", "score"), [
    ("122.122", correct("122")), ("112,122.122", correct("122")), ("122.112", wrong("112")),
    ("122.112.122", correct("122")), ("122.0122", wrong("0122")), ("122.", UNPARSABLE),
    ("122", UNPARSABLE), ("122.122,", UNPARSABLE), ("", UNPARSABLE),
])  # fmt: skip
def test_the_final_value_is_the_digits_between_the_last_point_and_the_end(text, score):
    problems = [Problem("additions/37+85", "37+85=", "122"), Problem("additions/10+10", "10+10=", "20")]
    other = Completion("20.20", 6, FinishReason.STOP)
    assert final_value(problems, [Completion(text, 3, FinishReason.STOP), other]) == [score, correct("20")]
    cut = Completion(text, 3, FinishReason.LENGTH)
    assert final_value(problems[:1], [cut]) == [UNPARSABLE]
