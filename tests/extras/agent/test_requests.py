"""Which requests continue a conversation, and what a request is answered with."""

import json
import subprocess
import sys

import pytest

from bapo_lightning.extras.agent import call
from bapo_lightning.extras.agent.requests import SAMPLING, RequestRefused, chunks, completion, read

SYSTEM, ASK = {"role": "system", "content": "s"}, {"role": "user", "content": "q"}
NEW, LATER = {"role": "user", "content": "n"}, {"role": "developer", "content": "d"}
IN_PARTS = {**ASK, "content": [{"type": "text", "text": "q"}]}
TOOL, CALLED = {"function": {"name": "f"}}, '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


def said(text, **more):
    return {"role": "assistant", "content": text, **more}


def calling(arguments):
    return said(
        None, tool_calls=[{"id": "i", "type": "function", "function": {"name": "f", "arguments": arguments}}]
    )


def asked(*messages, is_chat=True, **more):
    body = {"messages": messages} if is_chat else {"prompt": messages[0]}
    return read(json.dumps({**body, **more}).encode(), is_chat, False)


@pytest.mark.parametrize(("messages", "added", "if_ignored"), [
    ([SYSTEM, ASK, said(" a\n", refusal=None), NEW], ["n"], ["n"]),
    ([SYSTEM, IN_PARTS, said("a"), NEW, LATER], ["n", "d"], ["n", "d"]),
    ([SYSTEM, ASK, said("b"), NEW], None, ["n"]),
    ([{**SYSTEM, "content": "t"}, ASK, said("a"), NEW], None, ["n"]),
    ([SYSTEM, ASK, NEW], None, ["n"]),
    ([ASK, said("a"), NEW], None, None),
    ([SYSTEM, ASK, said("a")], None, None),
    ([SYSTEM, ASK, said("a"), said("b"), NEW], None, None),
    ([SYSTEM], None, None),
])  # fmt: skip
def test_a_request_continues_the_one_whose_messages_it_repeats(messages, added, if_ignored):
    for edits, expected in (("cut", added), ("ignore", if_ignored)):
        found = asked(SYSTEM, ASK).news("a", asked(*messages), edits)
        assert (found and [each["content"] for each in found]) == expected


def test_calls_are_compared_by_value_and_tools_must_stay():
    first = asked(ASK, tools=[TOOL])
    assert first.news(CALLED, asked(ASK, calling(' {"a":1}'), NEW, tools=[TOOL]))
    assert not first.news(CALLED, asked(ASK, calling('{"a": 2}'), NEW, tools=[TOOL]))
    assert not first.news(CALLED, asked(ASK, calling('{"a": 1}'), NEW))
    assert not asked(ASK).news(CALLED, asked(ASK, calling('{"a": 1}'), NEW))  # without tools a call is a text


def test_deep_arguments_and_calls_without_a_name_are_texts():
    deep = "[" * 900 + "]" * 900
    first = asked(ASK, calling(deep), NEW, tools=[TOOL])
    assert first.digest and first.messages[1]["tool_calls"][0]["function"]["arguments"] == deep
    arguments = ('{"a": ' + deep + "}", "{}")
    for name, given in zip(('"f"', "1"), arguments, strict=True):
        called = f'<tool_call>{{"name": {name}, "arguments": {given}}}</tool_call>'
        assert completion(first, called)["choices"][0]["message"]["content"] == called


def test_a_prompt_continues_with_what_is_behind_its_answer():
    first = asked("p", is_chat=False, stop=["."])
    assert first.news("a.b", asked("pac", is_chat=False)) == [{"role": "user", "content": "c"}]
    assert [first.news("a.b", asked(text, is_chat=False)) for text in ("pa", "pbc", "q")] == [None] * 3
    assert completion(first, "a.b")["choices"][0]["text"] == "a"
    assert [each["choices"][0]["text"] for each in chunks(first, "a")] == ["a", ""]
    assert first.digest != asked(ASK).digest and not first.news("a", asked(ASK, said("a"), NEW))


def test_an_empty_stop_stops_nothing():
    for stop in ("", [""], ["", "."]):
        assert asked(ASK, stop=stop).answer("a.b")["content"] == ("a" if "." in stop else "a.b")


def test_what_cannot_be_answered_is_refused_with_the_reason():
    picture = {**ASK, "content": [{"type": "image_url", "image_url": {}}]}
    other = {"role": "x", "content": ""}
    for more in (
        {"n": 17},
        {"n": 0},
        {"logprobs": True},
        {"messages": [other]},
        {"messages": [picture]},
        {"stop": 1},
    ):
        with pytest.raises(RequestRefused, match="the program sent a request that cannot be used"):
            asked(ASK, **more)
    with pytest.raises(RequestRefused, match="no messages"):
        asked()
    assert asked(ASK, **dict.fromkeys(SAMPLING, 1)).digest == asked(ASK).digest


def test_a_function_is_a_program(tmp_path):
    (tmp_path / "mine.py").write_text("def score(problem):\n    return len(problem['task'])\n")
    command = [sys.executable, call.__file__, "mine:score"]
    done = subprocess.run(command, input=b'{"task": "abc"}', cwd=tmp_path, capture_output=True, check=True)
    assert done.stdout.split() == [b"3.0"]
