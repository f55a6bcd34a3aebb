r"""How a policy writes a call: `[12+34]`, a block of code, or JSON.

Everything that looks like a call is one, wherever the policy wrote it: quoted, as an example, near an answer.
A format cannot know better what a policy means; a call that does no harm when it runs needs no more.
"""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

_FENCE = re.compile(
    r"^[ \t]*((?P<mark>[`~])(?P=mark){2,})[ \t]*(\w*)[^\n`]*\n(.*?)(^[ \t]*\1(?P=mark)*[ \t]*$|\Z)",
    re.MULTILINE | re.DOTALL,
)
DEEPEST = 100  # of nested objects in a call, since JSON is written and compared recursively
TAG, _CLOSING_TAG = re.compile(r"<tool_call>\s*"), "</tool_call>"
_USUAL = ("expression", "code")  # names of an argument, if a call has several


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a finite number")
    return number


# Small models write unescaped line breaks in strings. No journal takes NaN, which Python would read.
LENIENT_JSON = json.JSONDecoder(strict=False, parse_float=_finite, parse_constant=_finite)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool."""

    name: str
    argument: str
    problem: str | None = None  # what is wrong with the way it is written; if set, nothing is called


class CallFormat(Protocol):
    """Finds the calls in a turn. Attribute `tool`: the only tool that it can call, if it is just one."""

    def find(self, text: str) -> list[Call]:
        """Returns the calls in the order of the text."""
        ...


@dataclass(frozen=True, slots=True)
class Bracketed:
    """A turn that ends with `[argument]`. The environment's `stop` is `["]"]`, so that the policy hands over
    right there; any other text that ends with a bracket, such as an interval, is taken for a call too.
    """

    tool: str = "calculator"

    def find(self, text: str) -> list[Call]:
        """Returns the call, if there is one."""
        text = text.rstrip()
        if not text.endswith("]"):
            return []
        _, bracket, argument = text[:-1].rpartition("[")
        problem = None if bracket else "the call has no opening ["
        return [Call(self.tool, argument.strip() if bracket else "", problem)]


@dataclass(frozen=True, slots=True)
class FencedCode:
    """Blocks between lines of three or more backticks or tildes with one of `languages`."""

    tool: str = "python"
    languages: tuple[str, ...] = ("python", "py", "python3")

    def find(self, text: str) -> list[Call]:
        """Returns a call for each block."""
        return [
            Call(self.tool, code, None if fence else "the code has no closing ``` on a line of its own")
            for _, _, language, code, fence in _FENCE.findall(text.replace("\r\n", "\n") + "\n")
            if language.lower() in self.languages
        ]


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as in the chat formats of Hermes and Qwen.
    A tool takes one argument, whatever its name. `parameters` is another name for `arguments`, and an object
    that is written as a string is parsed once more.
    """

    def find(self, text: str) -> list[Call]:
        """Returns a call for each tag."""
        calls, place = list[Call](), 0
        while (tag := TAG.search(text, place)) is not None:
            closing = text.find(_CLOSING_TAG, _json_end(text, tag.end()))
            if closing < 0:
                return [*calls, Call("", "", f"the call has no closing {_CLOSING_TAG}")]
            calls.append(_read(text[tag.end() : closing]))
            place = closing + len(_CLOSING_TAG)
        return calls


def is_deeper(value: Any, most: int = DEEPEST) -> bool:
    """Returns whether a JSON value is nested more than `most` deep."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return most == 0 or any(is_deeper(each, most - 1) for each in inner)


def pattern_problem(key: str, pattern: str | None, without: str) -> str | None:
    """Returns why the option `key` is not a regular expression, and that null means `without`; or None."""
    try:
        re.compile(pattern or "")
    except re.error as error:
        return f"{key}={pattern} is not a regular expression ({error}); null {without}"
    return None


def last_match(pattern: re.Pattern[str] | None, text: str) -> str:
    """Returns the last match in a turn (its first group if it has one), or nothing; without a pattern the
    whole turn. Policies mention what they might do before they do it.
    """
    if pattern is None:
        return text
    matches = list(pattern.finditer(text))
    return (matches[-1][min(1, pattern.groups)] or "") if matches else ""


def _json_end(text: str, start: int) -> int:
    """End of a JSON value, so that a closing tag in one of its strings is text; `start` if there is none."""
    try:
        return LENIENT_JSON.raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return start


def _read(body: str) -> Call:
    try:
        call = json.loads(body, strict=False)
    except (ValueError, RecursionError) as error:
        return Call("", "", f"the call is not JSON ({error})")
    if not isinstance(call, dict) or not isinstance(name := call.get("name"), str):
        return Call("", "", 'the call must be {"name": "the tool", "arguments": {...}}')
    argument = _argument(call.get("arguments", call.get("parameters")))
    if argument is None:
        return Call(name, "", f"the arguments of {name} must be an object with one text")
    return Call(name, argument)


def _argument(given: Any) -> str | None:
    if isinstance(given, str) and given.lstrip().startswith("{"):
        with suppress(ValueError, RecursionError):  # otherwise it is the argument itself
            given = json.loads(given, strict=False)
    if isinstance(given, dict):
        usual = [given[key] for key in _USUAL if key in given]
        values = usual if len(usual) == 1 else list(given.values())
        given = values[0] if len(values) == 1 else None
    if isinstance(given, int | float) and not isinstance(given, bool):
        return str(given)
    return given if isinstance(given, str) else None
