import pytest

from bapo_lightning.errors import ConfigError
from bapo_lightning.rewards.format_reward import FormatReward, is_marked, is_think, is_think_answer
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


def test_a_cut_response_keeps_no_format():
    assert values(0.5, Completion(KEPT, 9, FinishReason.LENGTH)) == [1.0]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("<think>a</think> b", True), (" <think>a\nb</think>\nb ", True), ("<think></think>b", False),
        ("<think> \n</think>b", False), ("<think>a</think>", False), ("a <think>b</think> c", False),
        ("<think>a</think> b <think>c</think> d", False), ("<think><think>a</think> b", False),
        ("<think>a b", False), ("b", False), ("", False),
    ],
)  # fmt: skip
def test_think_is_one_thought_at_the_beginning_and_an_answer(text, kept):
    assert is_think(text) is kept


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("<think>a</think> <answer>5</answer>", True), ("<think>a</think><answer>5</answer>\n", True),
        ("<think></think> <answer>5</answer>", False), ("<think>a</think> <answer></answer>", False),
        ("<think>a</think> 5", False), ("<think>a</think> <answer>5</answer> bye", False),
        ("<think>a</think> <answer>5</answer><answer>6</answer>", False), ("<answer>5</answer>", False),
    ],
)  # fmt: skip
def test_think_answer_is_a_thought_and_a_tagged_answer(text, kept):
    assert is_think_answer(text) is kept


def test_marked_needs_a_marked_answer():
    assert is_marked(r"\boxed{5}") and not is_marked("5")


def test_an_unknown_format_is_named():
    with pytest.raises(
        ConfigError, match=r"reward\.format=xml is none of its values; write marked, think, think_answer"
    ):
        FormatReward(always_right, "xml", 0.1)


def test_closing_reaches_the_reward_inside():
    class Closable:
        closed = False

        def __call__(self, problems, completions):
            return []

        def close(self):
            self.closed = True

    inside = Closable()
    FormatReward(inside, "think", 0.1).close()
    FormatReward(always_right, "think", 0.1).close()
    assert inside.closed
