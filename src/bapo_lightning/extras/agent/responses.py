"""OpenAI's /v1/responses as a form of a chat: items become messages, and a text of the policy becomes items.

An item `reasoning` is left out, since the policy's text is not divided. Nothing is kept for
`previous_response_id`: a program sends the whole conversation.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from bapo_lightning.extras.agent.requests import (
    SAMPLING,
    Asked,
    Message,
    RequestRefused,
    SentCall,
    SentFunction,
    SentMessage,
    TextPart,
    accepted,
    sent,
    text_of,
)
from bapo_lightning.system.peers.answers import Answer, Json, Many

_SETTINGS = (*SAMPLING, "max_output_tokens", "reasoning", "text", "truncation")
_NO_USAGE = {
    **{"input_tokens": 0, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 0},
    **{"output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 0},
}


class _ItemPart(TextPart):
    type: Literal["input_text", "output_text", "text"]


class _Item(Answer):
    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | Many[_ItemPart] | None = None
    name: str | None = None
    arguments: str = "{}"
    output: str | Many[_ItemPart] = ""


class _ResponsesRequest(Answer):
    model: str = ""
    input: str | Many[_Item]
    instructions: str | None = None
    tools: Many[dict[str, Json]] | None = None
    stream: bool | None = None
    previous_response_id: None = None
    conversation: None = None
    background: Literal[False] | None = None


def read_responses(body: bytes, refuses_settings: bool) -> Asked:
    """Returns the request of an HTTP body. Raises RequestRefused."""
    parsed = accepted(_ResponsesRequest, body, _SETTINGS if refuses_settings else ())
    items = (_Item(role="user", content=parsed.input),) if isinstance(parsed.input, str) else parsed.input
    first = [SentMessage(role="system", content=parsed.instructions)] if parsed.instructions else []
    messages = tuple(message.plain() for message in (*first, *_messages(items)))
    if not messages:
        raise RequestRefused("the request has no input")
    tools = tuple(_tool(tool) for tool in parsed.tools or ())
    return Asked(messages, tools, (), parsed.model, bool(parsed.stream))


def _messages(items: tuple[_Item, ...]) -> list[SentMessage]:
    """One message for each item, but a text of the assistant and the calls behind it are one."""
    parts = list[tuple[Any, str | None, list[SentCall]]]()  # role, content, calls
    for item in items:
        if item.type == "function_call":
            if not parts or parts[-1][0] != "assistant":
                parts.append(("assistant", None, []))
            function = SentFunction(name=item.name or "", arguments=item.arguments)
            parts[-1][2].append(SentCall(function=function))
        elif item.type == "function_call_output":
            parts.append(("tool", text_of(item.output), []))
        elif item.type == "message":
            if item.role is None:
                raise RequestRefused("a message of the input has no role")
            parts.append((item.role, text_of(item.content), []))
    return [
        SentMessage(role=role, content=content, tool_calls=tuple(calls) or None)
        for role, content, calls in parts
    ]


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A function as chat templates read it. Raises RequestRefused for tools that a server would run."""
    if tool.get("type") != "function" or not isinstance(tool.get("name"), str):
        raise RequestRefused("each tool must be a function with a name")
    inner = {key: tool[key] for key in ("name", "description", "parameters") if tool.get(key) is not None}
    return {"type": "function", "function": inner}


def response(request: Asked, text: str) -> dict[str, Any]:
    """Returns the body of the answer to a request that gets a text of the policy."""
    return _body(request, _items(request, text), "completed")


def events(request: Asked, text: str) -> Iterator[dict[str, Any]]:
    """Yields the events of the streamed answer, in OpenAI's order."""
    emitted: list[dict[str, Any]] = [
        {"type": "response.created", "response": _body(request, [], "in_progress")},
        {"type": "response.in_progress", "response": _body(request, [], "in_progress")},
    ]
    items = _items(request, text)
    for number, item in enumerate(items):
        place: dict[str, Any] = {"output_index": number, "item_id": item["id"]}
        if item["type"] == "message":
            (part,), empty = item["content"], {**item, "content": [], "status": "in_progress"}
            place |= {"content_index": 0}
            blank = {**part, "text": ""}
            steps: list[dict[str, Any]] = [
                {"type": "response.content_part.added", **place, "part": blank},
                {"type": "response.output_text.delta", **place, "delta": part["text"], "logprobs": []},
                {"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []},
                {"type": "response.content_part.done", **place, "part": part},
            ]
        else:
            given, empty = item["arguments"], {**item, "arguments": "", "status": "in_progress"}
            name = "response.function_call_arguments"
            steps = [
                {"type": f"{name}.delta", **place, "delta": given},
                {"type": f"{name}.done", **place, "arguments": given, "name": item["name"]},
            ]
        emitted.append({"type": "response.output_item.added", "output_index": number, "item": empty})
        emitted += steps
        emitted.append({"type": "response.output_item.done", "output_index": number, "item": item})
    emitted.append({"type": "response.completed", "response": _body(request, items, "completed")})
    for number, event in enumerate(emitted):
        yield {**event, "sequence_number": number}


def _items(request: Asked, text: str) -> list[dict[str, Any]]:
    message, _ = sent(request, text)
    calls: list[Message] = message.get("tool_calls", [])
    said: dict[str, Any] = {
        "type": "output_text",
        "text": message["content"] or "",
        "annotations": [],
        "logprobs": [],
    }
    spoken = {"type": "message", "id": f"msg_{request.digest}", "role": "assistant", "content": [said]}
    return [
        *([{**spoken, "status": "completed"}] if message["content"] or not calls else ()),
        *(
            {
                **{"type": "function_call", "id": f"fc_{call['id']}", "call_id": call["id"]},
                **{"status": "completed", **call["function"]},
            }
            for call in calls
        ),
    ]


def _body(request: Asked, items: list[dict[str, Any]], status: str) -> dict[str, Any]:
    nothing = dict.fromkeys(("error", "incomplete_details", "instructions", "temperature", "top_p"))
    return {
        **{"id": f"resp_{request.digest}", "object": "response", "created_at": int(time.time())},
        **{"status": status, "model": request.model, "output": items, "parallel_tool_calls": True},
        **{"tool_choice": "auto", "tools": [], "metadata": {}, "usage": _NO_USAGE, **nothing},
    }


def event_lines(event: Mapping[str, Any]) -> str:
    """Returns an event as a stream of server-sent events has it."""
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
