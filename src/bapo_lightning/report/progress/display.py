"""The only live display of this process, at the bottom of the terminal; without one, timed lines."""

from __future__ import annotations

import atexit
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import IntEnum
from functools import partial
from textwrap import wrap

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bapo_lightning.report.progress.terminal import get_console
from bapo_lightning.system.orphans import in_background, print_failure
from bapo_lightning.system.phases import Phase, running
from bapo_lightning.system.printable import PrintableStream, print_printable

_FURTHER = 6  # additional indentation of continuation lines, in characters
_NEWEST_CYCLES = 8  # whose mean is the pace


class PhaseLine:
    """Current activity of this process, in each of its threads: "validation: sampling 40/128, 12 s"."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(phases_text(), style="dim", no_wrap=True, overflow="ellipsis")


def phases_text() -> str:
    """What each thread of this process is doing."""
    return " | ".join(phase_text(phases, time.monotonic()) for phases in running())


def phase_text(phases: Iterable[Phase], now: float) -> str:
    """Names of nested phases, with the innermost one's count and, from one second on, its duration."""
    *_, innermost = phases = tuple(phases)
    text = ": ".join(phase.name for phase in phases)
    if innermost.total is not None:
        done = innermost.done if innermost.measure is None else innermost.measure()
        # Some engines cannot count: then the number that is done is not shown.
        text += f" {done}/{innermost.total}" if done else f" {innermost.total}"
    seconds = now - innermost.since
    return f"{text}, {clock(seconds)}" if seconds >= 1 else text


def clock(seconds: float) -> str:
    """A duration: 12 s, 1:52, 1:02:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{rest:02d}"
    return f"{minutes}:{rest:02d}" if minutes else f"{rest} s"


def bar_line(label: str, done: float, total: float, seconds: float, left: float | None) -> Table:
    """A line with a bar, `seconds` since its start and those `left`, if known."""
    line = Table.grid(padding=(0, 1), expand=True)
    line.add_column(no_wrap=True)
    line.add_column(ratio=1)
    line.add_column(no_wrap=True, justify="right")
    time_left = "" if left is None else f", {clock(left)} left"
    line.add_row(label, ProgressBar(total, done), clock(seconds) + time_left)
    return line


def wrapped(parts: Iterable[str], width: int, between: str = "  ") -> list[str]:
    """Lines of at most `width` characters, broken only between parts; a longer part has its own line."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(between) + len(part) <= width:
            lines[-1] += between + part
        else:
            lines.append(part)
    return lines


def folded(text: str, width: int) -> str:
    """Text in lines of at most `width` characters, folded below a line's last column or further inside."""
    lines = []
    for line in text.splitlines():
        columns = [gap.end() for gap in re.finditer(r"(?<=\S) {3,}", line) if gap.end() <= width // 3 * 2]
        indent = columns[-1] if columns else len(line) - len(line.lstrip()) + _FURTHER
        lines += wrap(line, width, subsequent_indent=" " * indent, break_long_words=False) or [""]
    return "\n".join(lines)


class Pace:
    """Estimate of the time left by whole cycles: only the first update on a rollout batch waits."""

    def __init__(self, done: int, cycle: int, now: float) -> None:
        """`done` before the time `now`, in seconds; a cycle ends with each multiple of `cycle`."""
        self._cycle = cycle
        self._ends = deque([(done, now)], maxlen=_NEWEST_CYCLES + 1)
        self._first: tuple[int, float] | None = None
        self._newest = done, now

    def note(self, done: int, now: float) -> None:
        """Records how much is done."""
        self._newest = done, now
        self._first = self._first or self._newest
        if done % self._cycle == 0:
            self._ends.append(self._newest)

    def left(self, total: int, now: float) -> float | None:
        """Seconds until `total` are done; None while nothing is known."""
        (first, began), (last, end) = self._ends[0], self._ends[-1]
        if last > first:
            seconds = (end - began) / (last - first) * (total - last)
        elif self._first is not None and self._newest != self._first:
            # Within the first cycle: its first wait, and the pace since.
            pace = (self._newest[1] - self._first[1]) / (self._newest[0] - self._first[0])
            cycle = self._first[1] - began + (self._cycle - 1) * pace
            seconds = cycle / self._cycle * (total - last)
        else:
            return None
        return max(0.0, seconds - (now - end))


REFRESHES_PER_SECOND = 4
FIRST_SIGN, MOST_SILENT = 30.0, 300.0  # seconds without any line, before the first sign of life and at most


class Place(IntEnum):
    """Position of a part, from the top."""

    RUNS = 0  # a row for each run of a sweep
    RUN = 1  # bar and numbers of a run
    PHASE = 2  # what this process is doing: sampling 40/128, 12 s


def on_terminal() -> bool:
    """Whether standard output is a terminal in which lines can be redrawn."""
    return sys.stdout.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


_parts: dict[Place, RenderableType] = {}
_live: Live | None = None
_num_hidden = 0


@contextmanager
def shown(place: Place, part: RenderableType) -> Iterator[None]:
    """Context in which a part is displayed, replacing an earlier one. Does nothing without a terminal."""
    if not on_terminal():
        yield
        return
    earlier = _parts.get(place)
    _put(place, part)
    try:
        yield
    finally:
        _put(place, earlier)


def displayed_phases(wanted: bool = True) -> AbstractContextManager[None]:
    """Context in which the display, or signs of life, show what this process is doing, if `wanted`."""
    if not wanted:
        return nullcontext()
    return shown(Place.PHASE, PhaseLine()) if on_terminal() else signs_of_life(phases_text)


@contextmanager
def signs_of_life(said: Callable[[], str]) -> Iterator[None]:
    """Context in which a line on stderr prints `said` if nothing has been printed for long, at growing
    intervals while nothing else is. Does nothing on a terminal.
    """
    ended = threading.Event()
    if not on_terminal():
        print_printable()  # which knows when a line was printed
        in_background("signs of life", partial(_tell, said, ended), print_failure)
    try:
        yield
    finally:
        ended.set()


def _tell(said: Callable[[], str], ended: threading.Event) -> None:
    start = last_line = time.monotonic()
    pause = FIRST_SIGN
    while not ended.wait(max(0.0, last_line + pause - time.monotonic())):
        if PrintableStream.written_at > last_line:
            last_line, pause = PrintableStream.written_at, FIRST_SIGN
            continue
        at_work = f"still at work, {clock(time.monotonic() - start)}"
        print(said() or at_work, file=sys.stderr, flush=True)
        last_line, pause = time.monotonic(), min(2 * pause, MOST_SILENT)


@contextmanager
def hidden() -> Iterator[None]:
    """Context without the display, for other code that draws on the terminal, such as Lightning's bars."""
    global _num_hidden
    _num_hidden += 1
    _update()
    try:
        yield
    finally:
        _num_hidden -= 1
        _update()


def _put(place: Place, part: RenderableType | None) -> None:
    if part is None:
        _parts.pop(place, None)
    else:
        _parts[place] = part
    _update()


def _update() -> None:
    global _live
    if _parts and not _num_hidden:
        if _live is None:
            # If stderr is a separate file, it stays one: rich would redirect it to the terminal.
            _live = Live(
                console=get_console(),
                transient=True,
                refresh_per_second=REFRESHES_PER_SECOND,
                redirect_stderr=sys.stderr.isatty(),
                get_renderable=_all_parts,
            )
            _live.start()
            print_printable()  # before rich, which reads escapes in what is printed
        _live.refresh()
    elif _live is not None:
        live, _live = _live, None
        live.stop()


def _all_parts() -> RenderableType:
    parts = (_parts.get(place) for place in Place)  # another thread may remove one
    return Group(*(part for part in parts if part is not None))


@atexit.register
def _end() -> None:
    _parts.clear()
    _update()
