"""Current activity of this process, for a display.

    with phase("sampling", total=128):
        ...
        advance(3)

Phases of one thread are nested. Entering one takes about a microsecond and prints nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class Phase:
    """A phase in progress."""

    name: str
    total: int | None = None  # of the things that are counted; None: nothing is counted
    done: int = 0
    measure: Callable[[], int] | None = None  # returns how many are done, instead of `done`
    since: float = field(default_factory=time.monotonic)


_phases: dict[int, list[Phase]] = {}  # of each thread that is in one, the outermost first
_lock = threading.Lock()


@contextmanager
def phase(name: str, total: int | None = None, measure: Callable[[], int] | None = None) -> Iterator[Phase]:
    """Context in which this thread does what `name` says, to `total` things (None: not counted). `measure`,
    called by another thread, returns how many are done; None: `advance` counts them.
    """
    thread, entered = threading.get_ident(), Phase(name, total, measure=measure)
    with _lock:
        _phases.setdefault(thread, []).append(entered)
    try:
        yield entered
    finally:
        with _lock:
            open_phases = _phases[thread]
            open_phases.pop()
            if not open_phases:
                del _phases[thread]


def advance(count: int = 1) -> None:
    """Counts things that are done in the innermost phase of this thread."""
    open_phases = _phases.get(threading.get_ident())
    if open_phases:
        open_phases[-1].done += count


def running() -> list[tuple[Phase, ...]]:
    """The phases of each thread that is in one, the outermost first; the main thread before the others."""
    main = threading.main_thread().ident
    with _lock:
        by_thread = {thread: tuple(phases) for thread, phases in _phases.items()}
    return [by_thread[thread] for thread in sorted(by_thread, key=lambda thread: thread != main)]
