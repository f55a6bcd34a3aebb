import pytest

from bapo_lightning.environments.call_formats import Bracketed, Call, FencedCode, JsonCalls


@pytest.mark.parametrize(("text", "argument"), [
    ("[347+586]", "347+586"), ("She has [ 12 * 3 ]\n", "12 * 3"), ("first [1+1] is 2, then [2+2]", "2+2"),
    ("[1, [2]", "2"), ("the interval [0, 1]", "0, 1"), ("[]", ""),
])  # fmt: skip
def test_a_bracket_at_the_end_is_a_call(text, argument):
    assert Bracketed().find(text) == [Call("calculator", argument)]


@pytest.mark.parametrize("text", ["", "42", "[1+1] is 2", "[1+1", "\\boxed{2}"])
def test_a_turn_that_ends_otherwise_calls_nothing(text):
    assert Bracketed().find(text) == []


def test_a_bracket_that_was_never_opened_is_a_problem():
    assert Bracketed("sums").find("1+1]") == [Call("sums", "", "the call has no opening [")]


def test_each_block_of_python_is_a_call_and_others_are_text():
    text = "```python\nx = 1\n\nprint(x)\n```\nand\n```text\nfree\n```\n  ```Py title\nprint(2)\n  ```\n"
    assert FencedCode().find(text) == [Call("python", "x = 1\n\nprint(x)\n"), Call("python", "print(2)\n")]


def test_a_block_inside_another_is_a_part_of_it():
    assert FencedCode().find("```text\nsay ```python\n```\n1") == []


def test_a_call_is_one_wherever_it_stands():
    quoted = "> A sample:\n```python\n1\n```\nThe answer is \\boxed{2}."
    assert FencedCode().find(quoted) == [Call("python", "1\n")]
    assert JsonCalls().find('"<tool_call>{"name": "f", "arguments": "1"}</tool_call>"') == [Call("f", "1")]


def test_a_block_without_an_end_is_a_problem():
    (call,) = FencedCode("interpreter").find("```python\nprint(1)")
    assert call.name == "interpreter" and call.problem == "the code has no closing ``` on a line of its own"


@pytest.mark.parametrize("end", ["```", "``` ", "```\n\n"])
def test_a_block_ends_with_its_fence(end):
    assert FencedCode().find("```python\n1\n" + end) == [Call("python", "1\n")]


@pytest.mark.parametrize(("arguments", "argument"), [
    ('{"code": "print(1)"}', "print(1)"), ('{"anything": "1+1"}', "1+1"),
    ('{"code": "1", "timeout": 3}', "1"), ('{"expression": 12}', "12"), ('"1+1"', "1+1"),
])  # fmt: skip
def test_a_json_call_has_one_argument(arguments, argument):
    text = f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'
    assert JsonCalls().find(text) == [Call("f", argument)]


@pytest.mark.parametrize("arguments", ["{}", "null", '{"a": "1", "b": "2"}', '{"a": ["1"]}', "true", "[]"])
def test_other_arguments_are_a_problem(arguments):
    (call,) = JsonCalls().find(f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>')
    assert (call.name, call.problem) == ("f", "the arguments of f must be an object with one text")


@pytest.mark.parametrize(("text", "problem"), [
    ("<tool_call>{", "no closing </tool_call>"), ("<tool_call>{'name': 1}</tool_call>", "not JSON"),
    ("<tool_call>" + "[" * 100_000 + "</tool_call>", "not JSON"),
    ("<tool_call>" + "9" * 10_000 + "</tool_call>", "not JSON"), ("<tool_call>[]</tool_call>", "must be"),
    ('<tool_call>{"name": ["f"]}</tool_call>', "must be"),
])  # fmt: skip
def test_what_is_no_json_call_is_a_problem(text, problem):
    (call,) = JsonCalls().find(text)
    assert call.problem is not None and problem in call.problem


def test_json_calls_stand_in_the_order_of_the_text():
    text = "".join(f'<tool_call>{{"name": "{name}", "arguments": "1"}}</tool_call> and ' for name in "ba")
    assert JsonCalls().find(text) == [Call("b", "1"), Call("a", "1")]


@pytest.mark.parametrize(
    "text", ["[" * 50_000, "```" * 20_000, "```python\n" * 10_000, "<tool_call>" * 10_000]
)
def test_hostile_texts_are_read_at_once(text):
    for calls in (Bracketed(), FencedCode(), JsonCalls()):
        assert len(calls.find(text)) <= 1


@pytest.mark.parametrize(("body", "argument"), [
    (r'{"name": "python", "arguments": "{\"code\": \"print(6*7)\"}"}', "print(6*7)"),
    ('{"name": "python", "parameters": {"code": "1"}}', "1"),
    ('{"name": "python", "arguments": {"code": "print(\'</tool_call>\')"}}', "print('</tool_call>')"),
    ('{"name": "python", "arguments": {"code": "a\nb"}}', "a\nb"),
    ('{"name": "calculator", "arguments": "{1, 2}"}', "{1, 2}"),
])  # fmt: skip
def test_json_as_models_write_it_is_read(body, argument):
    calls = JsonCalls().find(f"so <tool_call>\n{body}\n</tool_call> and <tool_call>{body}</tool_call>")
    assert [(call.argument, call.problem) for call in calls] == [(argument, None)] * 2


@pytest.mark.parametrize("fence", ["```", "````", "~~~", "~~~~"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_every_fence_and_line_end_makes_a_block(fence, end):
    block = end.join([f"{fence}python", "print(1)", fence, ""])
    calls = FencedCode().find(f"one{end}{block}two{end}{block}")
    assert [(call.argument, call.problem) for call in calls] == [("print(1)\n", None)] * 2
