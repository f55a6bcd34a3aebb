"""Verdicts on literal responses that end in a number."""

from __future__ import annotations

import pytest

from bapo_lightning.errors import DataError
from bapo_lightning.rewards.last_number import final_number, last_number
from bapo_lightning.types import Completion, FinishReason, Problem, Score, ScoreStatus

PROBLEM = Problem(id="sums/0", prompt="", answer="1,234")
UNPARSABLE = Score(0.0, ScoreStatus.UNPARSABLE)


def correct(answer):
    return Score(1.0, ScoreStatus.CORRECT, answer)


def wrong(answer):
    return Score(0.0, ScoreStatus.WRONG, answer)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3 pens and 4 make 7", "7"),
        ("so 7.\n#### 8\nfrom 9 pens", "8"),
        ("#### 5\n#### 6", "6"),
        ("#### none, so 5", "5"),
        ("\\boxed{4} or rather \\boxed{5}, of 9", "5"),
        ("\\boxed{x = \\frac{10}{2} = 5} of 9", "5"),
        ("\\boxed{1{,}234} of 9", "1234"),
        ("\\boxed{\\text{none}} of 9", "9"),
        ("\\boxed{5 of 9", "9"),
        ("\\boxed{5}\n#### 6", "6"),
        ("#### of \\boxed{7}", "7"),
        ("no idea", None),
    ],
)
def test_the_number_a_response_settles_on(text, expected) -> None:
    assert final_number(text) == expected


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("It is 1,234.", correct("1234")),
        ("1234.00", correct("1234")),
        ("#### $1,234", correct("1234")),
        ("1234 of 1235", wrong("1235")),
        ("-1234", wrong("-1234")),
        ("I give up", UNPARSABLE),
        ("9" * 5000, UNPARSABLE),
    ],
)
def test_a_response_is_right_when_its_number_is_the_gold_answer(text, score) -> None:
    assert last_number([PROBLEM], [Completion(text, 3, FinishReason.STOP)]) == [score]


def test_a_cut_response_counts_unless_it_must_stop() -> None:
    cut = Completion("so 1234", 3, FinishReason.LENGTH)
    assert last_number([PROBLEM], [cut]) == [correct("1234")]
    assert last_number([PROBLEM], [cut], require_stop=True) == [UNPARSABLE]


def test_a_gold_answer_that_is_no_number_is_a_fault_of_the_data() -> None:
    with pytest.raises(DataError, match="problem b has the gold answer 'blue'"):
        last_number([Problem("b", "", "blue")], [Completion("7", 1, FinishReason.STOP)])


def test_each_completion_needs_its_problem() -> None:
    with pytest.raises(ValueError, match="got 1 problems and 0 completions"):
        last_number([PROBLEM], [])
