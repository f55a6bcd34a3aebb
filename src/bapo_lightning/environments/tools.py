"""The contract between tools and the environment that calls them for a policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Reply of a tool to one call."""

    text: str
    failed: bool = False  # then the text says why


class Tool(Protocol):
    """Answers calls, from several threads at once. An attribute `is_pure`, true if the text follows from the
    argument alone and nothing else happens, and a method `close` mean the same as an environment's.
    """

    def __call__(self, argument: str) -> ToolResult:
        """Returns the result. The policy's mistakes become results; an exception ends the run."""
        ...
