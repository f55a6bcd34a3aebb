"""Interface of parts that hold processes, threads or devices."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Closes(Protocol):
    """Additional method of an engine, environment, tool or reward that holds such resources."""

    def close(self) -> None:
        """Releases them. May be called twice."""
        ...
