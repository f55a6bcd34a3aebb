"""Lines of the live display, none wider than the terminal."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterable
from textwrap import wrap

from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bapo_lightning.system.phases import Phase, running

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
        (begun, began), (ended, end) = self._ends[0], self._ends[-1]
        if ended > begun:
            seconds = (end - began) / (ended - begun) * (total - ended)
        elif self._first is not None and self._newest != self._first:
            # Within the first cycle: its first wait, and the pace since.
            pace = (self._newest[1] - self._first[1]) / (self._newest[0] - self._first[0])
            cycle = self._first[1] - began + (self._cycle - 1) * pace
            seconds = cycle / self._cycle * (total - ended)
        else:
            return None
        return max(0.0, seconds - (now - end))
