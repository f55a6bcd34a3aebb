"""Progress of things done one by one: a bar on a terminal, else a line for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, ConsoleOptions, RenderResult

from bapo_lightning.report.progress.display import Place, on_terminal, shown
from bapo_lightning.report.progress.lines import Pace, bar_line


class CountBar:
    """A bar of things that are done, and the time left."""

    def __init__(self, title: str, total: int) -> None:
        self.title, self.total, self.done = title, total, 0
        self._start = time.monotonic()
        self._pace = Pace(0, max(1, total // 20), self._start)  # mean of many: they differ

    def count(self) -> None:
        """One more is done."""
        self.done += 1
        self._pace.note(self.done, time.monotonic())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """One line."""
        now = time.monotonic()
        label = f"{self.title} {self.done}/{self.total}"
        yield bar_line(label, self.done, self.total, now - self._start, self._pace.left(self.total, now))


@contextmanager
def counted(title: str, total: int) -> Iterator[Callable[[str], None]]:
    """Context that shows how many of `total` things are done; gives what to call with the name of each."""
    bar = CountBar(title, total)

    def count(name: str) -> None:
        bar.count()
        if not on_terminal():
            width = len(str(total))
            print(f"[{bar.done:{width}}/{total}] {name}", flush=True)

    with shown(Place.RUN, bar):
        yield count
