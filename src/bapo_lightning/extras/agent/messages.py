"""Messages of a program as tokens: the prompt, with tools, and the messages between two turns of the policy.

A reply of the environment is one text. Several messages, or one of another role, look like this in it:

    content of a user's message, or nothing <RS> role <US> content <RS> role <US> content ...
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from bapo_lightning.data.problems.prompts import MessagesPrompt, PlainPrompt, rendered
from bapo_lightning.data.rollouts.feedback import PLACEHOLDER, ChatFeedback
from bapo_lightning.types import Problem

_MESSAGE, _CONTENT = "\x1e", "\x1f"
_REMOVED = str.maketrans("", "", _MESSAGE + _CONTENT)


def reply_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """Returns the text of a reply that brings messages."""
    pairs = [(each["role"], each["content"].translate(_REMOVED)) for each in messages]
    first = pairs.pop(0)[1] if pairs[0][0] == "user" else ""
    return first + "".join(f"{_MESSAGE}{role}{_CONTENT}{content}" for role, content in pairs)


def messages_of(text: str) -> list[dict[str, str]]:
    """Returns the messages of a reply's text, which may have been cut at any place."""
    first, *rest = text.split(_MESSAGE)
    pairs = [part.partition(_CONTENT) for part in rest]
    found = [{"role": role, "content": content} for role, mark, content in pairs if mark]
    return [{"role": "user", "content": first}, *found] if first or not found else found


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

    role: Literal["tool", "user"] = "user"  # of the messages with which the template is checked

    def __call__(self, tokenizer: Any, text: str) -> array[int]:
        """Returns the token ids from the end of the policy's message to the beginning of its next message."""
        messages = [
            {**each, "content": self.template.replace(PLACEHOLDER, each["content"])}
            for each in messages_of(text)
        ]
        try:
            between = self.between(tokenizer, *messages)
        except Exception:  # whatever a template raises for roles or an order that it does not know
            joined = "\n".join(message["content"] for message in messages)
            between = self.between(tokenizer, {"role": "user", "content": joined})
        return array("i", tokenizer.encode(between, add_special_tokens=False))

    def blank(self, text: str) -> str:
        """Returns a reply of the same roles that says nothing."""
        return reply_text([{**message, "content": "0"} for message in messages_of(text)])
