"""Tables that are neither wrapped nor cut, however narrow the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

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
