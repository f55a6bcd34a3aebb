"""A program that asks by OpenAI's client, and prints 1 if it read all answers."""

import json
import sys

from openai import OpenAI

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}


def main():
    client, task = OpenAI(max_retries=0), json.load(sys.stdin)["task"]
    items = [{"role": "user", "content": task}]
    first = client.responses.create(model="m", input=items, tools=[TOOL])
    assert first.output_text == "one"
    items += [item.model_dump(exclude_none=True) for item in first.output]
    items.append({"role": "user", "content": "And?"})
    with client.responses.stream(model="m", input=items, tools=[TOOL]) as stream:
        called = stream.get_final_response()
    (call,) = called.output
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "f", {"a": 1})
    items += [item.model_dump(exclude_none=True) for item in called.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "2"})
    assert client.responses.create(model="m", input=items, tools=[TOOL]).output_text == "three"
    messages = [{"role": "user", "content": "Another prompt."}]
    both = client.chat.completions.create(model="m", messages=messages, n=2)
    assert [choice.message.content for choice in both.choices] == ["four", "five"]
    print(1.0)


if __name__ == "__main__":
    main()
