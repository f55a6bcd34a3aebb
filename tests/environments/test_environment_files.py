from typing import Any

import pytest

from bapo_lightning.configuration.compose import compose_run
from bapo_lightning.configuration.targets import Target, target_problems
from bapo_lightning.environments.environment import Turn
from bapo_lightning.types import Closes, Problem, Reply

PROBLEM = Problem("sums-0", "6*7", "42", "sums")


def environment(name, *overrides):
    found: dict[str, Any] = compose_run([f"environment={name}", *overrides])["environment"]
    assert found["name"] == name
    assert list(target_problems(found, "environment")) == []
    return found


@pytest.mark.parametrize(
    ("name", "overrides", "call", "answer"),
    [
        ("calculator", [], "It is [6*7]", "42"),
        (
            "python", ["environment.answers.tools.python.modules=[]"], "```python\nprint(6 * 7)\n```",
            "\\boxed{42}",
        ),
    ],
)  # fmt: skip
def test_calls_are_answered(name, overrides, call, answer):
    answers = Target(environment(name, *overrides)["answers"]).make()
    assert answers.start(PROBLEM) is None
    assert answers.respond(Turn(PROBLEM, call, 0, False, None)) == Reply("42", calls=1)
    assert answers.respond(Turn(PROBLEM, answer, 1, True, None)) == Reply(is_done=True)
    assert isinstance(answers, Closes)
    answers.close()


def test_the_calculator_is_asked_at_its_closing_bracket():
    assert environment("calculator")["stop"] == ["]"]


def test_code_is_answered_by_a_message():
    found = environment("python")
    assert found["feedback"]["_target_"].endswith("ChatFeedback") and found["stop"] == []
    assert found["answers"]["tools"]["python"]["workers"] == found["workers"]
