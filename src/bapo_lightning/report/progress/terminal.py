"""The console of this process, which writes its own escapes and passes on none from texts, and tables that it
neither wraps nor cuts, however narrow the terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import IO

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

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


_ANY_WIDTH = 10_000  # rich caps its measurements at the width that it is given


def simple_table(room: int) -> Table:
    """A table that stays readable when piped, with `room` characters behind each column."""
    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, room, 0, 0))


def fits(table: Table, console: Console) -> bool:
    """Whether a whole table fits side by side."""
    unbounded = console.options.update(width=_ANY_WIDTH)
    return console.measure(table, options=unbounded).maximum <= console.width


def in_parts(make: Callable[[Sequence[int]], Table], count: int, console: Console) -> Iterator[Table]:
    """Yields a table in as few parts as fit; `make` makes one with the given of `count` divisible columns."""
    left = list(range(count))
    while left:
        taken = next((n for n in range(len(left), 1, -1) if fits(make(left[:n]), console)), 1)
        yield make(left[:taken])
        left = left[taken:]
