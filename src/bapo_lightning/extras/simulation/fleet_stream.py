"""A fleet in virtual time whose sequences start and end between decoding steps (`regime=stream`).

All copies make the same steps in a call, which lasts as long as the slowest one needs: `ray/streams.py` calls
them together. A sequence that waits for room starts at the step at which another one ends. A copy's death is
noticed between two calls; other copies read its sequences again.

Shapes: C copies of the model.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

import numpy as np

from bapo_lightning.data.rollouts.running_group import STEPS
from bapo_lightning.extras.simulation.fleet import FleetPass, VirtualFleet
from bapo_lightning.system.values import StaleContext

CALL_SHARE = 1 / 256
Piece = tuple[int, int]  # tokens, and the version that sampled them


@dataclass
class _Sequence:
    context: int  # tokens that it starts with
    left: int  # to its end, when it starts
    copy: int | None = None  # None: it waits
    begin: int = 0  # step
    reported: int = 0  # step up to which its tokens were reported, except for copies that died
    lost: list[Piece] = field(default_factory=list)  # those

    @property
    def end(self) -> int:
        return self.begin + self.left


class FleetStream:
    """Contents of the copies, as counts; time passes with `call`."""

    def __init__(self, fleet: VirtualFleet, context: StaleContext, mean_tokens: float = 0.0) -> None:
        """`mean_tokens`: of a response. For speed, calls last up to `CALL_SHARE` of a long response."""
        self._fleet, self._context = fleet, context
        self._call_steps = STEPS * max(1, int(CALL_SHARE * mean_tokens / STEPS))
        self._steps = 0  # made so far
        self._sequences: dict[int, _Sequence] = {}
        self._waiting: deque[int] = deque()
        self._ends: list[tuple[int, int]] = []  # heap of steps and numbers; outdated ones are skipped
        self._loads: list[tuple[int, int]] = []  # steps from which a version samples, and versions
        self._count_C = np.zeros(fleet.copies, np.int64)  # sequences that run
        self._cached_C = np.zeros(fleet.copies)  # their tokens
        self._unread_C = np.zeros(fleet.copies)  # tokens that the next call reads first
        self._is_alive_C = np.ones(fleet.copies, bool)
        self._next_change = 0.0  # seconds: a copy dies or comes back
        self._lost, self._deaths = 0, 0  # since the last call
        self._held, self._num_steps = 0, 0  # sequences added up over its steps, and these

    def load(self, version: int) -> None:
        """Takes weights for the following steps."""
        self._loads.append((self._steps, version))
        if self._context == "recompute":
            self._unread_C += self._cached_C

    def give_up(self, number: int) -> None:
        """Forgets a sequence, if it has it; its tokens were in vain."""
        sequence = self._sequences.pop(number, None)
        if sequence is None:
            return
        if sequence.copy is None:
            self._waiting.remove(number)
        else:
            self._lost += self._steps - sequence.reported
            self._leave(sequence)

    def enter(self, number: int, context: int, tokens: int) -> None:
        """Takes a sequence that starts with `context` tokens and gets `tokens` more. Numbers are unique."""
        self._sequences[number] = _Sequence(context, tokens)
        self._waiting.append(number)

    def call(self, now: float) -> tuple[FleetPass, dict[int, list[Piece]], set[int]]:
        """Some steps that start at `now` seconds. Returns their time, the tokens since the last report of the
        sequences that started or ended in them, and which of these ended.
        """
        waited = self._change_copies(now)
        started = self._begin_waiting()
        seconds_C = self._read()
        ended: dict[int, _Sequence] = {}
        left = self._call_steps
        while left and self._next_end():
            steps = min(left, self._ends[0][0] - self._steps)
            seconds_C += self._step(steps)
            left -= steps
            while self._next_end() == self._steps:
                number = heapq.heappop(self._ends)[1]
                ended[number] = self._sequences.pop(number)
                self._leave(ended[number])
            if ended and self._waiting:
                started += self._begin_waiting()
                seconds_C += self._read()
        running = {number: self._sequences[number] for number in started if number not in ended}
        pieces = {number: self._new_pieces(sequence) for number, sequence in (running | ended).items()}
        return self._passed(seconds_C, waited), pieces, set(ended)

    def quiet_call(self, now: float) -> FleetPass | None:
        """Some more steps in which no sequence starts or ends; None if one does, or nothing runs."""
        end = self._next_end()
        if (
            end is None
            or end <= self._steps + self._call_steps
            or self._next_change <= now
            or self._has_room()
        ):
            return None
        return self._passed(self._read() + self._step(self._call_steps))

    def _next_end(self) -> int | None:
        while self._ends:
            end, number = self._ends[0]
            sequence = self._sequences.get(number)
            if sequence is not None and sequence.copy is not None and sequence.end == end:
                return end
            heapq.heappop(self._ends)
        return None

    def _step(self, steps: int) -> np.ndarray:
        times, count_C = self._fleet.times, self._count_C
        each_C = times.step + times.sequence * count_C + times.context * self._cached_C
        seconds_C = steps * each_C + times.context * count_C * (steps * (steps - 1) / 2)
        self._cached_C += count_C * steps
        self._steps += steps
        self._held += steps * int(count_C.sum())
        self._num_steps += steps
        return np.where(count_C > 0, seconds_C, 0.0)

    def _read(self) -> np.ndarray:
        seconds_C = self._fleet.times.prefill * self._unread_C
        self._unread_C = np.zeros(self._fleet.copies)
        return seconds_C

    def _passed(self, seconds_C: np.ndarray, waited: float = 0.0) -> FleetPass:
        fleet = self._fleet
        factor = fleet.draw_jitter()
        seconds = waited + factor * (fleet.times.begin + float(seconds_C.max()))
        busy = factor * (fleet.times.begin * fleet.copies + float(seconds_C.sum()))
        passed = FleetPass(seconds, busy, self._lost, self._deaths, self._held / max(1, self._num_steps))
        self._lost = self._deaths = self._held = self._num_steps = 0
        return passed

    def _has_room(self) -> bool:
        is_open_C = self._is_alive_C & (self._count_C < self._fleet.times.slots)
        return bool(self._waiting) and bool(is_open_C.any())

    def _begin_waiting(self) -> list[int]:
        """Distributes waiting sequences to the living copies with the fewest; returns those that start."""
        started: list[int] = []
        while self._has_room():
            number = self._waiting.popleft()
            sequence = self._sequences[number]
            copy = int(np.where(self._is_alive_C, self._count_C, np.iinfo(np.int64).max).argmin())
            sequence.copy, sequence.begin, sequence.reported = copy, self._steps, self._steps
            heapq.heappush(self._ends, (sequence.end, number))
            self._count_C[copy] += 1
            self._cached_C[copy] += sequence.context
            self._unread_C[copy] += sequence.context
            started.append(number)
        return started

    def _leave(self, sequence: _Sequence) -> None:
        assert sequence.copy is not None
        self._count_C[sequence.copy] -= 1
        self._cached_C[sequence.copy] -= sequence.context + self._steps - sequence.begin

    def _new_pieces(self, sequence: _Sequence) -> list[Piece]:
        """The tokens of a sequence since its last report, by the versions that sampled them."""
        pieces, sequence.lost = sequence.lost, []
        until = min(self._steps, sequence.end)
        for (start, version), (end, _) in pairwise([*self._loads, (until, 0)]):
            count = min(end, until) - max(start, sequence.reported)
            if count > 0:
                pieces.append((count, version))
        sequence.reported = until
        return pieces

    def _change_copies(self, now: float) -> float:
        """Lets copies die and come back; returns the seconds until one lives."""
        if now < self._next_change:
            return 0.0
        fleet = self._fleet
        for number in range(fleet.copies):
            while fleet.dies_at[number] <= now:
                fleet.bury(number)
                self._deaths += 1
                self._scatter(number)
        back_C = np.array(fleet.alive_from)
        waited = max(0.0, float(back_C.min()) - now)
        self._is_alive_C = back_C <= now + waited
        self._next_change = min(*fleet.dies_at, *back_C[~self._is_alive_C], inf)
        return waited

    def _scatter(self, copy: int) -> None:
        for number, sequence in reversed(self._sequences.items()):
            if sequence.copy == copy:
                steps = self._steps - sequence.begin
                sequence.lost = self._new_pieces(sequence)
                self._leave(sequence)
                sequence.copy = None
                sequence.context, sequence.left = sequence.context + steps, sequence.left - steps
                self._waiting.appendleft(number)
        self._unread_C[copy] = 0.0
