"""Verdicts on literal responses of the tiny world."""

import pytest

from bapo_lightning.rewards.final_value import final_value
from bapo_lightning.types import Completion, FinishReason, Problem, ScoreStatus

PROBLEM = Problem(id="additions/37+85", prompt="37+85=", answer="122")


@pytest.mark.parametrize(
    ("text", "finish", "value", "status"),
    [
        ("122.122", FinishReason.STOP, 1.0, ScoreStatus.CORRECT),
        ("112,122.122", FinishReason.STOP, 1.0, ScoreStatus.CORRECT),
        ("122.112", FinishReason.STOP, 0.0, ScoreStatus.WRONG),
        ("122.112.122", FinishReason.STOP, 1.0, ScoreStatus.CORRECT),
        ("122.0122", FinishReason.STOP, 0.0, ScoreStatus.WRONG),
        ("122.", FinishReason.STOP, 0.0, ScoreStatus.UNPARSABLE),
        ("122", FinishReason.STOP, 0.0, ScoreStatus.UNPARSABLE),
        ("122.122,", FinishReason.STOP, 0.0, ScoreStatus.UNPARSABLE),
        ("", FinishReason.STOP, 0.0, ScoreStatus.UNPARSABLE),
        ("122,122.122", FinishReason.LENGTH, 0.0, ScoreStatus.UNPARSABLE),
    ],
)
def test_the_verdict_is_on_the_digits_between_the_last_point_and_the_end(text, finish, value, status):
    (verdict,) = final_value([PROBLEM], [Completion(text, len(text), finish)])
    assert (verdict.value, verdict.status) == (value, status)


def test_the_digits_are_the_vote():
    verdicts = final_value(
        [PROBLEM] * 2, [Completion(text, len(text), FinishReason.STOP) for text in ("122.112", "122.")]
    )
    assert [verdict.answer for verdict in verdicts] == ["112", ""]


def test_each_completion_is_held_against_the_problem_at_its_index():
    other = Problem(id="additions/10+10", prompt="10+10=", answer="20")
    completions = [Completion("20.20", 6, FinishReason.STOP)] * 2
    assert [score.value for score in final_value([PROBLEM, other], completions)] == [0.0, 1.0]


def test_a_completion_without_a_problem_is_an_error():
    with pytest.raises(ValueError, match="got 1 problems and 0 completions"):
        final_value([PROBLEM], [])
