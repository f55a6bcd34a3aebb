"""A fleet of engine copies in virtual time: requests go to any free copy; copies die and come back.

All sequences of a copy decode in step. A step takes `step + sequence * n + context * c` seconds for n
sequences with c tokens in the cache, so that k steps without a change take
k (step + sequence n + context c) + context n k (k - 1) / 2, and only starts and ends are events.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, sqrt


@dataclass(frozen=True)
class EngineTimes:
    """Seconds that one copy of the model needs."""

    step: float  # for each step: reading the weights
    sequence: float = 0.0  # in addition, for each sequence in it
    context: float = 0.0  # in addition, for each token in the cache
    prefill: float = 0.0  # for each token that a sequence starts with; the others stand still
    begin: float = 0.0  # at the start of a pass, before anything is sampled
    slots: int = 1 << 30  # sequences at once
    jitter: tuple[float, ...] = (1.0,)  # equally likely factors of a pass


@dataclass(frozen=True)
class Failures:
    """Frequency of copies' deaths."""

    per_hour: float = 0.0  # deaths of one copy per hour of its life
    repair_seconds: float = 300.0  # until it takes requests again


@dataclass(frozen=True)
class FleetPass:
    """One pass of the fleet."""

    seconds: float
    busy: float  # seconds in which copies had a sequence, over all copies
    lost_tokens: int  # sampled by copies that died, and sampled again
    deaths: int
    running: float  # sequences at once, on average


@dataclass
class _Copy:
    number: int
    now: float  # time up to which it is settled
    steps: int = 0  # made so far
    cached: int = 0
    # heap: end, request, start, tokens
    running: list[tuple[int, int, int, int]] = field(default_factory=list)
    stamp: int = 0  # of its next event; others are outdated
    busy: float = 0.0
    held: float = 0.0  # seconds of all its sequences

    def spend(self, seconds: float) -> None:
        self.busy += seconds
        self.held += seconds * len(self.running)


class VirtualFleet:
    """Tracks which copies live from one pass to the next."""

    def __init__(self, copies: int, times: EngineTimes, failures: Failures, seed: int) -> None:
        self.copies, self.times, self._failures = copies, times, failures
        self._random = random.Random(seed)
        self.alive_from = [0.0] * copies  # each copy: time from which it takes requests
        self.dies_at = [self._lifetime() for _ in range(copies)]  # and time of its next death

    def run(self, start: float, work: Sequence[tuple[int, int]]) -> FleetPass:
        """Samples a pass at `start` seconds. `work`: tokens that each request starts with and gets."""
        for number in range(self.copies):
            while self.dies_at[number] <= start:  # between two passes
                self.bury(number)
        done = _Pass(self, start, work)
        done.run()
        factor = self.draw_jitter()
        seconds, busy = self.times.begin + done.end - start, self.times.begin * self.copies + done.busy
        running = done.held / (done.end - start) if done.held else 0.0
        return FleetPass(seconds * factor, busy * factor, done.lost_tokens, done.deaths, running)

    def draw_jitter(self) -> float:
        """A factor of the time of a pass."""
        return self._random.choice(self.times.jitter)

    def bury(self, number: int) -> None:
        """Lets a copy die at its time."""
        self.alive_from[number] = self.dies_at[number] + self._failures.repair_seconds
        self.dies_at[number] = self.alive_from[number] + self._lifetime()

    def _lifetime(self) -> float:
        rate = self._failures.per_hour / 3600
        return self._random.expovariate(rate) if rate else inf


class _Pass:
    """Events of one pass: a copy's next sequences end, a copy dies, a copy is back."""

    def __init__(self, fleet: VirtualFleet, start: float, work: Sequence[tuple[int, int]]) -> None:
        self._fleet, self._times, self._work = fleet, fleet.times, work
        self._queue = deque(range(len(work)))
        self._left = len(work)
        self._events: list[tuple[float, int, int]] = []  # time, copy, its stamp; stamp -1: death, -2: return
        self._copies = [_Copy(number, start) for number in range(fleet.copies)]
        self.end, self.lost_tokens, self.deaths, self.busy, self.held = start, 0, 0, 0.0, 0.0

    def run(self) -> None:
        living = [copy for copy in self._copies if self._fleet.alive_from[copy.number] <= copy.now]
        for copy in self._copies:
            self._watch(copy)
        self._deal(living)
        while self._left:
            self.end, number, stamp = heapq.heappop(self._events)
            copy = self._copies[number]
            if stamp == -1:
                self._die(copy)
            elif stamp == -2:
                copy.now = self.end
                self._watch(copy)
                self._deal([copy])
            elif stamp == copy.stamp:
                self._finish(copy)
        self.busy = sum(copy.busy for copy in self._copies)
        self.held = sum(copy.held for copy in self._copies)

    def _watch(self, copy: _Copy) -> None:
        back, death = self._fleet.alive_from[copy.number], self._fleet.dies_at[copy.number]
        if back > copy.now:
            heapq.heappush(self._events, (back, copy.number, -2))
        elif death < inf:
            heapq.heappush(self._events, (death, copy.number, -1))

    def _deal(self, copies: Sequence[_Copy]) -> None:
        given: dict[int, list[int]] = {copy.number: [] for copy in copies}
        open_copies = sorted(copies, key=lambda copy: len(copy.running))
        while self._queue and open_copies:
            still_open = []
            for copy in open_copies:
                if self._queue and len(copy.running) + len(given[copy.number]) < self._times.slots:
                    given[copy.number].append(self._queue.popleft())
                    still_open.append(copy)
            open_copies = still_open
        for copy in copies:
            if given[copy.number]:
                self._settle(copy, self._steps_by(copy, self.end))
                self._begin(copy, given[copy.number])

    def _begin(self, copy: _Copy, requests: Sequence[int]) -> None:
        read = 0
        for request in requests:
            context, tokens = self._work[request]
            heapq.heappush(copy.running, (copy.steps + tokens, request, copy.steps, context))
            read += context
        copy.cached += read
        copy.now += read * self._times.prefill
        copy.spend(read * self._times.prefill)
        self._expect(copy)

    def _expect(self, copy: _Copy) -> None:
        copy.stamp += 1
        if copy.running:
            end = copy.now + self._seconds(copy, copy.running[0][0] - copy.steps)
            heapq.heappush(self._events, (end, copy.number, copy.stamp))

    def _seconds(self, copy: _Copy, steps: int) -> float:
        times, count = self._times, len(copy.running)
        each = times.step + times.sequence * count + times.context * copy.cached
        return steps * each + times.context * count * steps * (steps - 1) / 2

    def _settle(self, copy: _Copy, steps: int) -> None:
        # Brings a copy to the present, by so many steps; the start of a further one is lost.
        copy.cached += len(copy.running) * steps
        copy.steps += steps
        if copy.running:
            copy.spend(max(0.0, self.end - copy.now))
        copy.now = max(copy.now, self.end)

    def _finish(self, copy: _Copy) -> None:
        self._settle(copy, copy.running[0][0] - copy.steps)
        fresh = []
        while copy.running and copy.running[0][0] == copy.steps:
            _, _, begin, context = heapq.heappop(copy.running)
            copy.cached -= context + copy.steps - begin
            self._left -= 1
            if self._queue:
                fresh.append(self._queue.popleft())
        if fresh:
            self._begin(copy, fresh)
        else:
            self._expect(copy)

    def _die(self, copy: _Copy) -> None:
        # Others sample its requests again.
        steps = self._steps_by(copy, self.end)
        self.lost_tokens += sum(copy.steps + steps - begin for _, _, begin, _ in copy.running)
        self._settle(copy, steps)
        self._queue.extendleft(sorted((request for _, request, _, _ in copy.running), reverse=True))
        copy.running, copy.cached, copy.stamp = [], 0, copy.stamp + 1
        self.deaths += 1
        self._fleet.bury(copy.number)
        self._watch(copy)
        self._deal([other for other in self._copies if self._fleet.alive_from[other.number] <= self.end])

    def _steps_by(self, copy: _Copy, now: float) -> int:
        # Whole steps that it has made by a time before its next sequence ends.
        if not copy.running or now <= copy.now:
            return 0
        times, count, seconds = self._times, len(copy.running), now - copy.now
        half = times.context * count / 2
        each = times.step + times.sequence * count + times.context * copy.cached - half
        steps = (sqrt(each**2 + 4 * half * seconds) - each) / (2 * half) if half else seconds / each
        return min(int(steps), copy.running[0][0] - copy.steps)
