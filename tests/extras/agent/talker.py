"""A program that talks through /v1/chat/completions with a tool, and writes the messages of each request to a
file: `python talker.py FILE TURNS [STREAM]`. It repeats the history as clients do.
"""

import json
import sys

from toy import chat, post

TOOL = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {}}}


def streamed(messages):
    """The message that the events of a stream add up to."""
    body = {"messages": messages, "tools": [TOOL], "stream": True, "stream_options": {"include_usage": True}}
    *events, done, last = post("/chat/completions", body).decode().split("\n\n")
    assert (done, last) == ("data: [DONE]", "")
    message = {}
    for event in events:
        for choice in json.loads(event.removeprefix("data: "))["choices"]:
            message |= choice["delta"]
    return message


def main(file, turns, is_streamed):
    task = json.load(sys.stdin)["task"]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": task}]
    for number in range(turns):
        answer = streamed(messages) if is_streamed else chat(messages, tools=[TOOL], temperature=0.1)
        if "content" in answer:
            answer["content"] = (answer["content"] or "").strip()  # as many clients do
        messages.append(answer | {"refusal": None})
        for place, call in enumerate(answer.get("tool_calls", ())):
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"seen {place}"})
        messages.append({"role": "user", "content": [{"type": "text", "text": f"And {number}?"}]})
    with open(file, "w") as written:
        json.dump(messages, written)
    print(len(messages))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), len(sys.argv) > 3)
