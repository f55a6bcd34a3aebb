"""The console of this process: it writes its own escapes, and passes on none from texts."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import IO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from bapo_lightning.system.printable import below_all, printable


class Terminal(Console):
    """Console that shows all texts as `printable`, in tables, bars and lines alike."""

    @property
    def file(self) -> IO[str]:
        """The stream that it writes to."""
        stream: IO[str] = below_all(super().file)
        return stream

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yields the parts of the displayed object."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)


@cache
def get_console() -> Console:
    """The only console of this process."""
    return Terminal()
