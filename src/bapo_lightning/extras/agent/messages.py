"""Messages of a program as tokens: the prompt, with tools, and the messages between two turns of the policy.

A reply of the environment is one text. Several messages, or one of another role, look like this in it:

    content of a user's message, or nothing <RS> role <US> content <RS> role <US> content <US> calls ...

A whole prompt has <GS> and its tools in the place of the first content.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from bapo_lightning.data.problems.prompts import MessagesPrompt, PlainPrompt, rendered
from bapo_lightning.data.rollouts.feedback import PLACEHOLDER, ChatFeedback
from bapo_lightning.system.errors import DataError
from bapo_lightning.types import Problem

_PROMPT, _MESSAGE, _CONTENT = "\x1d", "\x1e", "\x1f"
_REMOVED = str.maketrans("", "", _PROMPT + _MESSAGE + _CONTENT)
_CALLS = "tool_calls"


def reply_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """Returns the text of a reply that brings messages."""
    first, rest = "", list(messages)
    if rest[0]["role"] == "user":
        first = rest.pop(0)["content"].translate(_REMOVED)
    return first + "".join(map(_record, rest))


def prompt_text(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> str:
    """Returns the text of a reply that is a whole prompt."""
    return _PROMPT + _json(list(tools)) + "".join(map(_record, messages))


def messages_of(text: str) -> list[dict[str, Any]]:
    """Returns the messages of a reply's text, which may have been cut at any place."""
    first, *rest = text.split(_MESSAGE)
    parts = [part.split(_CONTENT) for part in rest]
    messages = [
        {"role": part[0], "content": part[1], **({_CALLS: calls} if (calls := _read(part[2:])) else {})}
        for part in parts
        if len(part) > 1
    ]
    first = "" if first.startswith(_PROMPT) else first
    return [{"role": "user", "content": first}, *messages] if first or not messages else messages


def _as_one(messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"role": "user", "content": "\n".join(message["content"] for message in messages)}


def _record(message: Mapping[str, Any]) -> str:
    calls = _CONTENT + _json(message[_CALLS]) if message.get(_CALLS) else ""
    return f"{_MESSAGE}{message['role']}{_CONTENT}{message['content'].translate(_REMOVED)}{calls}"


def _json(value: Any) -> str:
    # As it is written, so that what is removed from a reply is removed from it.
    return json.dumps(value, ensure_ascii=False)


def _read(parts: Sequence[str]) -> Any:
    """The JSON value of the first part, which may have been cut; None if there is none."""
    try:
        return json.loads(parts[0])
    except (IndexError, ValueError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class AgentPrompt(MessagesPrompt):
    """The messages of a program's first request, with its tools."""

    def __call__(self, tokenizer: Any, problem: Problem) -> array[int]:
        """Returns the token ids of the prompt; of /v1/completions, of its text without a template."""
        known = problem.metadata
        if "agent_metadata" in known and not known.get("messages"):  # the prompt of /v1/completions
            return PlainPrompt()(tokenizer, problem)
        tools = known.get("tools")
        options = {**self.template_options, **({"tools": tools} if tools else {})}
        return rendered(tokenizer, self.messages(problem), replace(self, template_options=options))


@dataclass(frozen=True, slots=True)
class AgentFeedback(ChatFeedback):
    """The messages that a program adds, in the chat format of the model's tokenizer."""

    writes_prompts: ClassVar[bool] = True  # for `Reply.after` of -1
    role: Literal["tool", "user"] = "user"  # of the messages with which the template is checked

    def __call__(self, tokenizer: Any, text: str) -> array[int]:
        """Returns the token ids from the end of the policy's message to the beginning of its next message."""
        messages = messages_of(text)
        if text.startswith(_PROMPT):
            tools = _read([text[1:].partition(_MESSAGE)[0]])
            options = {**self.template_options, **({"tools": tools} if tools else {})}
            try:
                return rendered(tokenizer, messages, MessagesPrompt(self.opening, options))
            except DataError:  # of the roles, or of the tools
                plain = MessagesPrompt(self.opening, self.template_options)
                return rendered(tokenizer, [_as_one(messages)], plain)
        for message in messages:
            if message["role"] != "assistant":
                message["content"] = self.template.replace(PLACEHOLDER, message["content"])
        try:
            between = self.between(tokenizer, *messages)
        except Exception:  # whatever a template raises for roles or an order that it does not know
            between = self.between(tokenizer, _as_one(messages))
        return array("i", tokenizer.encode(between, add_special_tokens=False))

    def blank(self, text: str) -> str:
        """Returns a reply of the same roles that says nothing."""
        blanks = []
        for message in messages_of(text):
            calls = [{"type": "function", "function": {"name": "0", "arguments": {}}}] * len(
                message.get(_CALLS, ())
            )
            blanks.append({**message, "content": "0", **({_CALLS: calls} if calls else {})})
        if text.startswith(_PROMPT):
            return prompt_text(blanks, _read([text[1:].partition(_MESSAGE)[0]]) or ())
        return reply_text(blanks)
