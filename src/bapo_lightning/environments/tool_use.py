"""Tools that a policy calls in its turns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from bapo_lightning.environments.call_formats import Call, CallFormat, pattern_problem
from bapo_lightning.environments.environment import Turn
from bapo_lightning.environments.tools import Tool, ToolResult
from bapo_lightning.system.values import Count
from bapo_lightning.types import Closes, Problem, Reply

_SHOWN = 40  # characters of a name that the policy made up


class ToolUse:
    """Environment that runs the calls of a turn and replies with their results; a turn without a call is the
    policy's answer, and ends the conversation.

    Args:
        tools: by the name that calls use.
        calls: how a call is written.
        answer: regular expression that must match in a turn with an answer; None: any text is one.
        max_calls: number that are run in one turn; the reply says that the others were not.

    Raises:
        ValueError: the options contradict one another.
    """

    def __init__(
        self, tools: Mapping[str, Tool], calls: CallFormat, answer: str | None = None, max_calls: Count = 4
    ) -> None:
        if problems := list(self.problems({"tools": tools, "answer": answer})):
            raise ValueError("; ".join(problems))
        if (tool := getattr(calls, "tool", None)) is not None and tool not in tools:
            raise ValueError(f"calls.tool={tool} is none of the tools; write one of {', '.join(tools)}")
        self._tools, self._calls, self._max_calls = dict(tools), calls, max_calls
        self._answer = re.compile(answer or "")
        self.is_pure = all(getattr(tool, "is_pure", False) for tool in tools.values())

    @staticmethod
    def problems(options: Mapping[str, Any]) -> Iterator[str]:
        """Yields what is wrong with the options of the constructor."""
        if not options["tools"]:
            yield "tools={} offers nothing to call; write tools: {NAME: {_target_: ...}}"
        if problem := pattern_problem("answer", options["answer"], "takes any text"):
            yield problem

    def start(self, problem: Problem) -> None:
        """Has no state."""

    def respond(self, turn: Turn) -> Reply:
        """Returns the results of the calls, a line or more for each."""
        calls = self._calls.find(turn.text)
        if not calls:
            has_answer = bool(turn.text.strip()) and self._answer.search(turn.text) is not None
            return Reply(is_done=True, is_void=not has_answer)
        if turn.is_last:  # its results would never be read
            return Reply(calls=len(calls))
        results = [self._result(call) for call in calls[: self._max_calls]]
        texts = [result.text for result in results]
        if (left := len(calls) - len(results)) > 0:
            texts.append(f"At most {self._max_calls} calls are run in a turn; {left} more were not.")
        errors = left + sum(result.failed for result in results)
        return Reply("\n".join(texts), calls=len(calls), errors=errors)

    def close(self) -> None:
        """Ends the processes of the tools that have any."""
        for tool in self._tools.values():
            if isinstance(tool, Closes):
                tool.close()

    def _result(self, call: Call) -> ToolResult:
        if call.problem is not None:
            return ToolResult(f"Error: {call.problem}.", failed=True)
        if (tool := self._tools.get(call.name)) is None:
            names = ", ".join(self._tools)
            return ToolResult(f"Error: there is no tool {call.name[:_SHOWN]!r}; call {names}.", failed=True)
        result = tool(call.argument)
        if not isinstance(result, ToolResult) or not isinstance(result.text, str):
            raise TypeError(
                f"tool {call.name} returned {result!r:.80}; return a "
                "bapo_lightning.environments.tools.ToolResult with a text"
            )
        return result
