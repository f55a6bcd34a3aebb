from unittest.mock import Mock

import pytest

from bapo_lightning.rewards.format_reward import FormatReward, is_marked, is_think, is_think_answer
from bapo_lightning.system.errors import ConfigError
from bapo_lightning.types import Completion, FinishReason, Problem, Score, ScoreStatus

PROBLEM = Problem("1", "?", "5")
KEPT, BROKEN = "<think>2 + 3</think> \\boxed{5}", "\\boxed{5}"


def always_right(problems, completions):
    return [Score(1.0, ScoreStatus.CORRECT, "5") for _ in problems]


def values(bonus, *completions):
    reward = FormatReward(always_right, "think", bonus)
    return [score.value for score in reward([PROBLEM] * len(completions), list(completions))]


def test_a_bonus_is_added_to_the_value_and_the_verdict_stays():
    scores = FormatReward(always_right, "think", 0.1)([PROBLEM], [Completion(KEPT, 9, FinishReason.STOP)])
    assert scores == [Score(1.1, ScoreStatus.CORRECT, "5")]


def test_a_negative_bonus_is_taken_off_where_the_format_is_broken():
    kept, broken = Completion(KEPT, 9, FinishReason.STOP), Completion(BROKEN, 9, FinishReason.STOP)
    assert values(0.5, kept, broken) == [1.5, 1.0]
    assert values(-0.5, kept, broken) == [1.0, 0.5]
    assert values(0.5, Completion(KEPT, 9, FinishReason.LENGTH)) == [1.0]  # what is cut keeps no format


def test_an_unknown_format_is_named():
    words = r"reward\.format=xml is none of its values; write marked, think, think_answer"
    with pytest.raises(ConfigError, match=words):
        FormatReward(always_right, "xml", 0.1)


@pytest.mark.parametrize(("keeps", "text", "kept"), [
    (is_marked, r"\boxed{5}", True), (is_marked, "5", False),
    (is_think, "<think>a</think> b", True), (is_think, " <think>a\nb</think>\nb ", True),
    (is_think, "<think></think>b", False), (is_think, "<think> \n</think>b", False),
    (is_think, "<think>a</think>", False), (is_think, "a <think>b</think> c", False),
    (is_think, "<think>a</think> b <think>c</think> d", False), (is_think, "<think>a b", False),
    (is_think, "<think><think>a</think> b", False), (is_think, "b", False), (is_think, "", False),
    (is_think_answer, "<think>a</think> <answer>5</answer>", True),
    (is_think_answer, "<think>a</think><answer>5</answer>\n", True),
    (is_think_answer, "<think></think> <answer>5</answer>", False),
    (is_think_answer, "<think>a</think> <answer></answer>", False),
    (is_think_answer, "<think>a</think> 5", False), (is_think_answer, "<answer>5</answer>", False),
    (is_think_answer, "<think>a</think> <answer>5</answer> bye", False),
    (is_think_answer, "<think>a</think> <answer>5</answer><answer>6</answer>", False),
])  # fmt: skip
def test_formats(keeps, text, kept):
    assert keeps(text) is kept


def test_closing_reaches_the_reward_inside():
    inside = Mock()
    FormatReward(inside, "think", 0.1).close()
    FormatReward(always_right, "think", 0.1).close()
    inside.close.assert_called_once_with()


def test_a_thought_that_the_prompt_opened_is_the_responses():
    text = "2 + 3</think> \\boxed{5}"
    opened = Completion(text, 9, FinishReason.STOP, is_thought=True)
    assert values(0.5, opened, Completion(text, 9, FinishReason.STOP)) == [1.5, 1.0]
