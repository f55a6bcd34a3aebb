"""Turns of the policy as actions of an OpenEnv world: a text, a JSON object, or calls of tools."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from bapo_lightning.environments.call_formats import (
    DEEPEST,
    LENIENT_JSON,
    TAG,
    is_deeper,
    last_match,
    pattern_problem,
)

MAX_CHARACTERS = 20_000  # of a turn that are searched, from its end
MOST_OBJECTS = 64  # places at which JSON may start, from the end


class ActionFormat(Protocol):
    """Finds the actions in a turn. `may_answer`: a turn without one is the policy's answer, and ends the
    conversation; otherwise the reply says that it contained none.
    """

    may_answer: bool

    def actions(self, text: str) -> list[dict[str, Any]]:
        """Returns the actions in the order of the text. Raises ValueError if one is malformed."""
        ...


class TextAction:
    """The turn, or a part of it, as one field of the action.

    Args:
        field: field of the action that gets the text.
        pattern: regular expression; the last match in a turn is the text, its first group if it has one.
            None: the whole turn.
        others: fields of the action with constant values.
    """

    may_answer = False

    def __init__(
        self, field: str = "message", pattern: str | None = None, others: Mapping[str, Any] | None = None
    ) -> None:
        if problems := list(self.problems({"pattern": pattern})):
            raise ValueError("; ".join(problems))
        self._field, self._others = field, dict(others or {})
        self._pattern = None if pattern is None else re.compile(pattern, re.DOTALL)

    @staticmethod
    def problems(options: Mapping[str, Any]) -> Iterator[str]:
        """Yields what is wrong with the options of the constructor."""
        if problem := pattern_problem("pattern", options["pattern"], "takes a whole turn"):
            yield problem

    def actions(self, text: str) -> list[dict[str, Any]]:
        """Returns one action, or none if the pattern has no match or the turn is blank."""
        text = last_match(self._pattern, text[-MAX_CHARACTERS:])
        return [{**self._others, self._field: text}] if text.strip() else []


class JsonAction:
    """The last JSON object in the turn is the action."""

    may_answer = False

    def actions(self, text: str) -> list[dict[str, Any]]:
        """Returns the object that ends last and is not inside another, or none."""
        text, objects, after = text[-MAX_CHARACTERS:], list[dict[str, Any]](), 0
        for place in [match.start() for match in re.finditer(r"\{", text)][-MOST_OBJECTS:]:
            if place >= after:
                try:
                    value, after = LENIENT_JSON.raw_decode(text, place)
                except (ValueError, RecursionError):
                    continue
                objects = objects if is_deeper(value) else [value]
        return objects


class ToolCalls:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as in the chat formats of Hermes and Qwen,
    for worlds whose tools come from an MCP server. A turn without a call is the policy's answer.

    Args:
        max_calls: number that are run in one turn; a turn with more calls runs none.
    """

    may_answer = True

    def __init__(self, max_calls: int = 4) -> None:
        self._max_calls = max_calls

    def actions(self, text: str) -> list[dict[str, Any]]:
        """Returns a call for each tag. Raises ValueError that says what is wrong with one of them."""
        text = text[-MAX_CHARACTERS:]
        calls = [_call(text, match.end()) for match in TAG.finditer(text)]
        if len(calls) > self._max_calls:
            raise ValueError(f"at most {self._max_calls} calls are run in a turn, not {len(calls)}")
        return calls


def _call(text: str, start: int) -> dict[str, Any]:
    try:
        call, _ = LENIENT_JSON.raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the call is not JSON ({error})") from None
    given = call.get("arguments", call.get("parameters", {})) if isinstance(call, dict) else None
    if not isinstance(given, dict) or not isinstance(name := call.get("name"), str):
        raise ValueError('the call must be {"name": "the tool", "arguments": {...}}')
    if is_deeper(given):
        raise ValueError(f"the arguments are nested more than {DEEPEST} deep")
    return {"type": "call_tool", "tool_name": name, "arguments": given}
