"""Requests and answers of /v1/responses, as items; OpenAI's client reads them in tests/rollout/vllm."""

import json

import pytest

from bapo_lightning.extras.agent.requests import RequestRefused, completion, read
from bapo_lightning.extras.agent.responses import event_lines, events, read_responses, response

CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
TOOL = {"type": "function", "name": "f", "parameters": {}, "strict": True}
CHAT_TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
CALLED = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}'}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "2"}


def asked(given, refuses=False, **more):
    return read_responses(json.dumps({"input": given, **more}).encode(), refuses)


def chat(*messages, **more):
    return read(json.dumps({"messages": messages, **more}).encode(), True, False)


def test_items_are_the_messages_of_a_chat():
    parts = [{"type": "input_text", "text": "q"}]
    first = {"role": "user", "content": "q"}
    system = {"role": "system", "content": "s"}
    for own in ("q", [first], [{"type": "message", "role": "user", "content": parts}]):
        assert asked(own, instructions="s").digest == chat(system, first).digest
    own = [
        first,
        {"type": "reasoning", "id": "r", "summary": []},
        {"role": "assistant", "content": [{"type": "output_text", "text": "t"}]},
        CALLED,
        CALLED,
        RESULT,
        {**RESULT, "output": [{"type": "input_text", "text": "2"}]},
        CALLED,
    ]
    calls = [{"function": {"name": "f", "arguments": '{"a": 1}'}}]
    answer = {"role": "assistant", "content": "t", "tool_calls": calls * 2}
    result = {"role": "tool", "content": "2"}
    last = {"role": "assistant", "tool_calls": calls}
    found = asked(own, tools=[TOOL])
    assert found.digest == chat(first, answer, result, result, last, tools=[CHAT_TOOL]).digest


def test_the_answer_sent_back_continues_the_conversation():
    first = asked("q", tools=[TOOL])
    for text in ("a", f"think {CALL}", CALL + CALL):
        sent = json.loads(json.dumps(response(first, text)))["output"]
        later = asked([{"role": "user", "content": "q"}, *sent, RESULT], tools=[TOOL])
        assert first.news(text, later) == [{"role": "tool", "content": "2"}]
        in_chat = completion(first, text)["choices"][0]["message"]
        kinds = [item["type"] for item in sent]
        assert kinds.count("function_call") == len(in_chat.get("tool_calls", ()))


def test_a_stream_brings_every_part_once_and_ends_with_the_whole_answer():
    found = list(events(asked("q", tools=[TOOL]), f"think {CALL}"))
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert [event["type"].removeprefix("response.") for event in found] == [
        *("created", "in_progress", "output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done", "output_item.added"),
        *("function_call_arguments.delta", "function_call_arguments.done", "output_item.done", "completed"),
    ]
    done = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert found[-1]["response"]["output"] == done and len(done) == 2
    head, data, *_ = event_lines(found[0]).split("\n")
    assert head == "event: response.created" and json.loads(data.removeprefix("data: ")) == found[0]


@pytest.mark.parametrize("more", [
    {"previous_response_id": "x"}, {"conversation": "x"}, {"background": True},
    {"tools": [{"type": "web_search"}]}, {"input": []}, {"input": [{"content": "a"}]}, {"input": 1},
    {"input": [{"type": "computer_call"}]},
    {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
])  # fmt: skip
def test_what_cannot_be_answered_is_refused(more):
    with pytest.raises(RequestRefused):
        asked(**{"given": "q", **more})


def test_settings_are_refused_on_request():
    assert asked("q", max_output_tokens=5)
    with pytest.raises(RequestRefused, match="the run decides on max_output_tokens, temperature"):
        asked("q", refuses=True, max_output_tokens=5, temperature=1)
