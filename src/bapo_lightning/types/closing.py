"""What keeps processes, threads or devices."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Closes(Protocol):
    """Further method of an engine, an environment, a tool or a reward that keeps some."""

    def close(self) -> None:
        """Gives them back. Calling it twice is fine."""
        ...
