"""The only live display of this process, at the bottom of the terminal; without a terminal, timed lines."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import IntEnum
from functools import partial

from rich.console import Group, RenderableType
from rich.live import Live

from bapo_lightning.report.progress.lines import PhaseLine, clock, phases_text
from bapo_lightning.report.progress.terminal import get_console
from bapo_lightning.system.orphans import in_background, print_failure
from bapo_lightning.system.printable import PrintableStream, print_printable

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


def phases_shown(wanted: bool = True) -> AbstractContextManager[None]:
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
    begun = told = time.monotonic()
    pause = FIRST_SIGN
    while not ended.wait(max(0.0, told + pause - time.monotonic())):
        if PrintableStream.written_at > told:
            told, pause = PrintableStream.written_at, FIRST_SIGN
            continue
        at_work = f"still at work, {clock(time.monotonic() - begun)}"
        print(said() or at_work, file=sys.stderr, flush=True)
        told, pause = time.monotonic(), min(2 * pause, MOST_SILENT)


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
    found = (_parts.get(place) for place in Place)  # another thread may remove one
    return Group(*(part for part in found if part is not None))


@atexit.register
def _end() -> None:
    _parts.clear()
    _update()
