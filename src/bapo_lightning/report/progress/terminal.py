"""The console of this process: it writes escapes of its own, and passes none on."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import IO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from bapo_lightning.printable import below_all, printable


class Terminal(Console):
    """Console that shows texts as `printable`, whatever they came in: tables, bars, lines."""

    @property
    def file(self) -> IO[str]:
        """Where it writes."""
        found: IO[str] = below_all(super().file)
        return found

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yields the parts of what is shown."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)


@cache
def get_console() -> Console:
    """The one console of this process."""
    return Terminal()
