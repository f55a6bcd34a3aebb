"""Virtual time for processes that are generators.

A process yields seconds to sleep, or None to wait until something changes. Two processes, one condition and
no resources need no more than this heap; SimPy would be one more dependency of every installation, for a loop
that its events make several times slower.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator
from itertools import count

Process = Generator[float | None, None, None]


class Clock:
    """Lets processes take turns in the order of their times; those of one time, in the order they came."""

    def __init__(self) -> None:
        self.now = 0.0  # seconds
        self._due: list[tuple[float, int, Process]] = []
        self._waiting: list[Process] = []
        self._order = count()

    def start(self, process: Process) -> None:
        """Lets a process begin now."""
        heapq.heappush(self._due, (self.now, next(self._order), process))

    def changed(self) -> None:
        """Wakes all processes that wait for a change, after the present one."""
        waiting, self._waiting = self._waiting, []
        for process in waiting:
            self.start(process)

    def run(self, has_ended: Callable[[], bool]) -> None:
        """Runs until `has_ended`. Raises RuntimeError when every process waits for another."""
        while not has_ended():
            if not self._due:
                raise RuntimeError("every process waits for a change that none can make")
            self.now, _, process = heapq.heappop(self._due)
            for seconds in process:  # one step; a process that has ended makes none
                if seconds is None:
                    self._waiting.append(process)
                else:
                    heapq.heappush(self._due, (self.now + seconds, next(self._order), process))
                break
