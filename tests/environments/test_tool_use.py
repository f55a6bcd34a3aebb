from typing import Any

import pytest

from bapo_lightning.configuration.compose import compose_run
from bapo_lightning.configuration.targets import Target, target_problems
from bapo_lightning.environments.calculator import Calculator
from bapo_lightning.environments.call_formats import Bracketed, FencedCode, JsonCalls
from bapo_lightning.environments.environment import Turn
from bapo_lightning.environments.tool_use import ToolUse
from bapo_lightning.environments.tools import ToolResult
from bapo_lightning.types import Closes, Problem, Reply

PROBLEM = Problem("sums-0", "347+586", "933", "sums")


class Echo:
    """A tool that keeps something to close."""

    def __init__(self):
        self.heard: list[str] = []
        self.closed = 0

    def __call__(self, argument):
        self.heard.append(argument)
        return ToolResult(f"<{argument.strip()}>")

    def close(self):
        self.closed += 1


def turn(text, is_last=False):
    return Turn(PROBLEM, text, 0, is_last, None)


def calculator(calls=None, **options):
    return ToolUse({"calculator": Calculator()}, calls or Bracketed(), **options)


def json_call(name, argument):
    return f'<tool_call>{{"name": "{name}", "arguments": {{"expression": "{argument}"}}}}</tool_call>'


def test_a_call_is_answered_with_its_result():
    assert calculator().start(PROBLEM) is None
    assert calculator().respond(turn("That is [347+586]")) == Reply("933", calls=1)


def test_a_turn_without_a_call_ends_the_conversation():
    assert calculator().respond(turn("933")) == Reply(is_done=True)
    assert calculator().respond(turn("933", is_last=True)) == Reply(is_done=True)
    assert calculator().respond(turn(" \n")) == Reply(is_done=True, is_void=True)


def test_an_answer_may_have_a_form():
    tools = calculator(answer=r"\\boxed\{")
    assert tools.respond(turn("It is \\boxed{933}.")) == Reply(is_done=True)
    assert tools.respond(turn("It is 933.")) == Reply(is_done=True, is_void=True)


def test_the_calls_of_the_last_turn_are_not_run():
    echo = Echo()
    tools = ToolUse({"python": echo}, FencedCode())
    assert tools.respond(turn("```python\n1\n```", is_last=True)) == Reply(calls=1)
    assert echo.heard == []


def test_calls_run_in_order_and_the_surplus_is_named():
    echo = Echo()
    tools = ToolUse({"python": echo}, FencedCode(), max_calls=2)
    reply = tools.respond(turn("".join(f"```python\n{number}\n```\n" for number in range(4))))
    assert echo.heard == ["0\n", "1\n"]
    assert reply.text == "<0>\n<1>\nAt most 2 calls are run in a turn; 2 more were not."
    assert (reply.calls, reply.errors, reply.is_done) == (4, 2, False)


def test_faults_of_the_policy_are_feedback():
    tools = calculator(JsonCalls())
    text = json_call("calculator", "1/0") + json_call("oracle" * 100, "1") + "<tool_call>{"
    reply = tools.respond(turn(text))
    zero, unknown, unclosed = reply.text.splitlines()
    assert zero == "Error: division by zero."
    assert unknown.startswith("Error: there is no tool 'oracle") and unknown.endswith("call calculator.")
    assert len(unknown) < 100
    assert unclosed == "Error: the call has no closing </tool_call>."
    assert (reply.calls, reply.errors) == (3, 3)


def test_it_is_pure_and_closes_if_its_tools_do():
    echo = Echo()
    both = ToolUse({"calculator": Calculator(), "echo": echo}, JsonCalls())
    assert calculator().is_pure and not both.is_pure
    both.close()
    assert echo.closed == 1


def node(**options):
    room = "bapo_lightning.environments"
    return {
        "_target_": f"{room}.tool_use.ToolUse",
        "tools": {"calculator": {"_target_": f"{room}.calculator.Calculator"}},
        "calls": {"_target_": f"{room}.call_formats.Bracketed"},
        **options,
    }


def test_it_is_made_from_a_configuration():
    assert list(target_problems(node(), "environment.answers")) == []
    assert Target(node()).make().respond(turn("[1+1]")) == Reply("2", calls=1)


@pytest.mark.parametrize(("options", "problem"), [
    ({"tools": {}}, "environment.answers.tools={} offers nothing to call"),
    ({"answer": "("}, "environment.answers.answer=( is not a regular expression"),
    ({"max_calls": 0}, "environment.answers.max_calls=0"),
])  # fmt: skip
def test_options_that_cannot_work_are_named(options, problem):
    (found,) = target_problems(node(**options), "environment.answers")
    assert found.startswith(problem)


def test_a_format_that_calls_none_of_the_tools_is_refused():
    with pytest.raises(ValueError, match=r"calls.tool=python is none of the tools; write one of calculator"):
        calculator(FencedCode())
    with pytest.raises(ValueError, match="offers nothing"):
        ToolUse({}, JsonCalls())


def environment(name, *overrides):
    found: dict[str, Any] = compose_run([f"environment={name}", *overrides])["environment"]
    assert found["name"] == name
    assert list(target_problems(found, "environment")) == []
    return found


@pytest.mark.parametrize(("name", "overrides", "call", "answer"), [
    ("calculator", [], "It is [6*7]", "42"),
    ("python", ["environment.answers.tools.python.modules=[]"], "```python\nprint(6 * 7)\n```",
     "\\boxed{42}"),
])  # fmt: skip
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


@pytest.mark.parametrize("result", ["933", None, ToolResult(933), ToolResult(b"933"), ToolResult(["933"])])
def test_a_tool_that_returns_no_result_is_named(result):
    with pytest.raises(TypeError, match=r"tool calculator returned .*; return a .*ToolResult with a text"):
        ToolUse({"calculator": lambda argument: result}, Bracketed()).respond(turn("[347+586]"))
