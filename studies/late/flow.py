"""One seed's generation in time: a stream of groups whose answers start together and end one by one.

    batch(version)   waits until P groups can be trained, takes them, and generates while they train
    time             1 is the mean length of an answer at the start; a batch's number of answers runs at once
    decisions        K, at equal distances within an answer, each sampled by the version of its moment

Every random number depends on the seed and on the number of the group, so that all rules get the same
problems, lengths and luck, in the same order. Lengths depend on the first decision: how long to think.

Shapes: P groups in a batch, G answers of a group, K decisions, C contexts, A actions.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np

from studies.late.rules import DROPS_FROM_QUEUE, PLANNED, Action, kept, longest_span

BLOCK = 512  # groups whose random numbers are drawn at once


@dataclass(frozen=True)
class Setting:
    """Inputs of one seed's generation."""

    action: Action
    bound: int  # largest age, in versions
    groups: int  # P
    group_size: int
    decisions: int
    train_time: float  # of one update
    spread: float
    longest: float
    mean_C: np.ndarray  # mean length in a context
    key_C: np.ndarray  # first action that takes `key` times as long
    key: float


@dataclass(eq=False)
class Started:
    """A group, from its start on."""

    number: int
    context: int
    version: int
    start: float
    length_G: np.ndarray  # whole, even if it is cancelled
    uniform_GK: np.ndarray  # of the decisions
    luck_GK: np.ndarray  # of the reward
    left: int  # answers that run
    end_G: np.ndarray = field(init=False)  # time; cancelled answers end before their length
    share_G: np.ndarray = field(init=False)  # of the decisions that trained

    def __post_init__(self) -> None:
        self.end_G = self.start + self.length_G
        self.share_G = np.zeros(len(self.length_G))

    @property
    def tokens(self) -> np.ndarray:
        """Time for which each answer was generated, [G]."""
        return self.end_G - self.start


class Flow:
    """Groups on their way from a seeded stream of problems to training."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self.setting, self._seed = setting, seed
        self.now = 0.0
        self.changes: list[float] = []  # times at which versions began to sample
        self.groups: list[Started] = []  # all, by number
        self.running: dict[int, Started] = {}
        self.ready: list[Started] = []  # in the order in which they became complete
        self._ends: list[tuple[float, int, int]] = []
        self._cancelled: set[tuple[int, int]] = set()
        self._answers, self._entered = 0, 0  # answers that run; groups that entered training
        self._drawn: list[np.ndarray] = []

    def batch(self, first_CA: np.ndarray) -> list[Started]:
        """Returns the groups of the next update; generation continues until its end.

        Args:
            first_CA: the new version's chances of first decisions, added up over the actions.
        """
        self._first_CA = first_CA
        self.changes.append(self.now)
        self._give_up()
        self._fill()
        while len(batch := self._choose()) < self.setting.groups:
            self._next()
        self.ready = [group for group in self.ready if group not in batch]
        self._entered += len(batch)
        self._fill()
        until = self.now + self.setting.train_time
        while self._ends and self._ends[0][0] <= until:
            self._next()
        self.now = until
        return batch

    def versions(self, times: np.ndarray) -> np.ndarray:
        """Returns the versions that sample at these times."""
        return np.searchsorted(np.array(self.changes), times, side="right") - 1

    def decision_versions(self, group: Started) -> np.ndarray:
        """Returns the versions that sample the decisions of its whole answers, [G, K]."""
        places = np.arange(self.setting.decisions) / self.setting.decisions
        return self.versions(group.start + group.length_G[:, None] * places)

    def spans(self, group: Started) -> np.ndarray:
        """Returns the versions that pass while the answers are generated, [G]."""
        return self.versions(group.end_G) - group.version

    @property
    def resolved(self) -> list[Started]:
        """Groups up to the oldest one whose fate is open."""
        open_groups = [*self.running, *(group.number for group in self.ready)]
        return self.groups[: min(open_groups, default=len(self.groups))]

    @property
    def _version(self) -> int:
        return len(self.changes) - 1

    def _fill(self) -> None:
        setting = self.setting
        while self._answers <= (setting.groups - 1) * setting.group_size and self._may_start():
            self._start()

    def _may_start(self) -> bool:
        action, groups = self.setting.action, self.setting.groups
        if action in DROPS_FROM_QUEUE:
            return True
        if action not in PLANNED:
            return len(self.ready) < groups
        in_time = groups * (self._version + self.setting.bound + 1) - (groups - 1) * (action == "pace")
        return self._entered + len(self.ready) + len(self.running) < in_time

    def _start(self) -> None:
        setting, number = self.setting, len(self.groups)
        context, noise_G, uniform_GK, luck_GK = self._numbers(number)
        first_G = np.searchsorted(self._first_CA[context], uniform_GK[:, 0], side="right")
        factor_G = np.where(first_G == setting.key_C[context], setting.key, 1.0)
        lognormal_G = np.exp(setting.spread * noise_G - setting.spread**2 / 2)
        length_G = np.minimum(setting.mean_C[context] * factor_G * lognormal_G, setting.longest)
        size = len(length_G)
        group = Started(number, context, self._version, self.now, length_G, uniform_GK, luck_GK, left=size)
        self.groups.append(group)
        self.running[number] = group
        self._answers += size
        for index, end in enumerate(group.end_G.tolist()):
            heapq.heappush(self._ends, (end, number, index))

    def _numbers(self, number: int) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
        setting = self.setting
        size, width = setting.group_size, 2 * setting.decisions
        while number >= BLOCK * len(self._drawn):
            draws = np.random.default_rng((self._seed, len(self._drawn)))
            contexts = draws.integers(len(setting.mean_C), size=BLOCK)
            noise, uniform = draws.normal(size=(BLOCK, size)), draws.random((BLOCK, size * width))
            self._drawn.append(np.concatenate([contexts[:, None], noise, uniform], 1))
        row = self._drawn[number // BLOCK][number % BLOCK]
        uniform_GK, luck_GK = np.split(row[1 + size :].reshape(size, width), 2, axis=1)
        return int(row[0]), row[1 : 1 + size], uniform_GK, luck_GK

    def _next(self) -> None:
        """Lets the next answer end."""
        self.now, number, index = heapq.heappop(self._ends)
        if number in self.running and (number, index) not in self._cancelled:
            self._end(self.running[number])
        self._fill()

    def _end(self, group: Started) -> None:
        self._answers -= 1
        group.left -= 1
        if group.left:
            return
        del self.running[group.number]
        setting = self.setting
        in_time = self.spans(group) <= longest_span(setting.bound)
        if setting.action == "drop_rollout" and in_time.sum() < 2:
            return  # nothing to compare with
        self.ready.append(group)
        if setting.action in DROPS_FROM_QUEUE and len(self.ready) > setting.groups:
            by_start = setting.action == "queue_drop_start"
            self.ready.remove(min(self.ready, key=number_of) if by_start else self.ready[0])

    def _give_up(self) -> None:
        """Under new weights: cancels answers with too long a span, and drops groups that are too old."""
        action, bound, version = self.setting.action, self.setting.bound, self._version
        if action == "drop_rollout":
            for group in list(self.running.values()):
                if version - group.version > longest_span(bound):
                    for index in np.flatnonzero(group.end_G > self.now).tolist():
                        group.end_G[index] = self.now
                        self._cancelled.add((group.number, index))
                        self._end(group)
        if action in ("evict", "mask"):
            self.ready = [group for group in self.ready if not self._is_too_old(group)]
            for group in list(self.running.values()):
                if action == "evict" and self._is_too_old(group):
                    self._answers -= group.left
                    group.end_G = np.minimum(group.end_G, self.now)
                    del self.running[group.number]

    def _is_too_old(self, group: Started) -> bool:
        newest = self.decision_versions(group).max() if self.setting.action == "mask" else group.version
        return bool(self._version - newest > self.setting.bound)

    def _choose(self) -> list[Started]:
        """Returns at most P ready groups, in the order in which they enter training; `pace` lets none enter
        that started P or more groups after the oldest one, see `StartOrder`.
        """
        action, count = self.setting.action, self.setting.groups
        if action not in PLANNED:
            return self.ready[:count]
        waiting, present = sorted(self.ready, key=number_of), {*self.running, *map(number_of, self.ready)}
        chosen: list[Started] = []
        for group in waiting[:count]:
            if action == "pace" and group.number >= min(present) + count:
                break
            chosen.append(group)
            present.discard(group.number)
        return chosen


def number_of(group: Started) -> int:
    return group.number


def trained_parts(flow: Flow, batch: list[Started]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns for a batch that enters training: the versions of its decisions [P, G, K], whose reward counts
    [P, G], and which decisions train [P, G, K]; notes these in the groups.
    """
    setting = flow.setting
    versions = np.stack([flow.decision_versions(group) for group in batch])
    spans = np.stack([flow.spans(group) for group in batch])
    ages = len(flow.changes) - 1 - versions
    counted, trained = kept(setting.action, setting.bound, spans, ages)
    for group, is_trained in zip(batch, trained, strict=True):
        group.share_G = is_trained.mean(1)
    return versions, counted, trained
