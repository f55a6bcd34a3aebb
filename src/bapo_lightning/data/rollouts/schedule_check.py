"""Checks that the rows of a schedule can follow each other: a row's groups are where earlier rows left them.

    requests -> running, until they are finished and scored -> scored -> taken or evicted

The digest of a recorded schedule ends at the run's last checkpoint; this check covers later rows as well.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bapo_lightning.data.rollouts.running_group import STEPS


def contradiction(
    rows: Sequence[dict[str, Any]], group_size: int, problems: Container[str] | None = None
) -> int | None:
    """Returns the number, from 1, of the first row that is impossible at its place, None if there is none.
    `problems`: known ids, None: any. The rows have the fields of their events (`read_schedule`).
    """
    course = _Course(group_size, problems)
    return next((number for number, row in enumerate(rows, 1) if not course.allows(**row)), None)


@dataclass
class _Course:
    group_size: int
    problems: Container[str] | None
    clock: int = -1  # the trainer visits at every update, first at clock 0
    version: int = 0
    engine: int = 0  # version of the engine at the last pass
    num_requests: int = 0  # of the last pass
    seen: set[str] = field(default_factory=set)  # all groups started so far
    running: set[str] = field(default_factory=set)
    finished: set[str] = field(default_factory=set)
    scored: set[str] = field(default_factory=set)

    def allows(self, do: str, **fields: Any) -> bool:
        """Returns whether this row can come next, and moves behind it."""
        move = getattr(self, f"_{do}", None)
        return move is None or bool(move(**fields))

    def _visit(self, clock: int, version: int) -> bool:
        fits = self.clock <= clock <= self.clock + 1 and self.version <= version <= clock
        self.clock, self.version = clock, version
        return fits

    def _pass(self, version: int, evicted: list[Any], requests: list[Any]) -> bool:
        fits = self.engine <= version <= self.version and all(map(self._is_request, requests))
        if not fits or not _moved(evicted, self.running, set()):
            return False
        groups = [name for name, _ in requests]
        started = {*groups} - self.running
        self.engine, self.num_requests = version, sum(len(numbers) for _, numbers in requests)
        fits = len({*groups}) == len(groups) and not started & self.seen
        self.seen |= started
        self.running |= started
        self.finished -= {*groups}
        return fits

    def _is_request(self, request: Any) -> bool:
        match request:
            case [str(name), [*numbers]]:
                return self._is_group(name) and _are_numbers(numbers, self.group_size)
        return False

    def _is_group(self, name: str) -> bool:
        epoch, _, problem = name.partition("/")
        return epoch.isdecimal() and (self.problems is None or problem in self.problems)

    def _sampled(
        self, finished: list[Any], lost: bool = False, rounds: Iterable[Any] = (), steps: int = STEPS
    ) -> bool:
        replies = all(
            type(numbers) is list and _are_numbers(numbers, self.num_requests) for numbers in rounds
        )
        fits = replies and steps >= STEPS and _are_of(finished, self.running)
        self.finished |= {*finished} if fits else set()
        return fits

    def _replies(self, groups: list[Any]) -> bool:
        return all(map(self._is_request, groups)) and _are_of([name for name, _ in groups], self.running)

    def _resumed(self) -> bool:
        self.finished.clear()  # unscored groups finish once more
        return True

    def _scored(self, ready: list[Any], rejected: list[Any]) -> bool:
        names = [*ready, *rejected]  # other finished groups are sampled once more
        return _moved(names, self.finished, set()) and _moved(names, self.running, self.scored)

    def _evict(self, groups: list[Any]) -> bool:
        return _moved(groups, self.scored, set())

    def _take(self, groups: list[Any], filtered: list[Any]) -> bool:
        return _moved([*groups, *filtered], self.scored, set())


def _moved(names: list[Any], source: set[str], target: set[str]) -> bool:
    if not _are_of(names, source):
        return False
    source -= {*names}
    target |= {*names}
    return True


def _are_of(names: list[Any], groups: set[str]) -> bool:
    return all(type(name) is str for name in names) and len({*names}) == len(names) and {*names} <= groups


def _are_numbers(numbers: list[Any], end: int) -> bool:
    is_number = all(type(number) is int and 0 <= number < end for number in numbers)
    return is_number and len({*numbers}) == len(numbers)
