"""Tracks the responses of running groups while generation is a stream.

free --enter--> in the engine --turn ended--> waits for a reply --take_replies--> free
                     | ended as the group's last
                     v
                being scored
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from bapo_lightning.data.rollouts.conversations import Conversations
from bapo_lightning.data.rollouts.running_group import RunningGroup
from bapo_lightning.types import Reply

Place = tuple[int, int]  # identity of a running group, number of a sample in it


@dataclass(eq=False)
class InFlight:
    """Responses in the engine or in conversation, and groups that are being scored. No locks, no engine."""

    conversations: Conversations | None = None  # None: responses are one turn
    # Called from any thread when a reply has come.
    on_reply: Callable[[], None] = lambda: None
    _sampled: dict[int, tuple[RunningGroup, int]] = field(default_factory=dict, init=False)  # by number
    _numbers: dict[Place, int] = field(default_factory=dict, init=False)  # their numbers by place
    # Groups that were running at the last call, by identity; and groups whose samples must all be
    # checked, since one may be able to continue and not be in the engine.
    _known: dict[int, RunningGroup] = field(default_factory=dict, init=False)
    _unsettled: set[int] = field(default_factory=set, init=False)
    _waiting: dict[Place, tuple[RunningGroup, int, Future[Reply]]] = field(default_factory=dict, init=False)
    _scored: dict[int, RunningGroup] = field(default_factory=dict, init=False)
    _given_up: list[int] = field(default_factory=list, init=False)  # numbers not yet reported to the engine
    _next_number: int = field(default=0, init=False)

    @property
    def sampled(self) -> dict[int, tuple[RunningGroup, int]]:
        """Groups and samples in the engine, by the number of their request."""
        return self._sampled

    def is_scored(self, group: RunningGroup) -> bool:
        """Whether a group is being scored."""
        return id(group) in self._scored

    def is_complete(self, group: RunningGroup) -> bool:
        """Whether every sample of a group has ended, and none waits for a reply."""
        return group.is_finished and not self.waiting(group)

    def rests(self, group: RunningGroup) -> bool:
        """True if no sample of a group can continue without a reply now."""
        return self.is_scored(group) or (group.is_finished and bool(self.waiting(group)))

    def lacking(self, group: RunningGroup) -> list[int]:
        """Returns the numbers of the samples that can continue and are not in the engine."""
        if id(group) in self._known and id(group) not in self._unsettled:
            return []
        return [index for index in group.unfinished() if (id(group), index) not in self._numbers]

    def enter(self, group: RunningGroup, index: int) -> int:
        """Notes that the engine gets a sample; returns the number of its request."""
        self._next_number += 1
        self._sampled[self._next_number] = group, index
        self._numbers[id(group), index] = self._next_number
        return self._next_number

    def settle(self, running: Sequence[RunningGroup]) -> None:
        """Notes that the engine has all samples that can continue; `running` are the only groups."""
        self._known = {id(group): group for group in running}
        self._unsettled.clear()

    def leave(self, number: int) -> None:
        """Notes that the engine has ended a request."""
        group, index = self._sampled.pop(number)
        del self._numbers[id(group), index]

    def drop_others(self, running: Sequence[RunningGroup]) -> None:
        """Forgets all groups that are not `running`."""
        kept = {id(group) for group in running}
        gone = [group for name, group in self._known.items() if name not in kept]
        places = [(id(group), index) for group in gone for index in range(len(group.rollouts))]
        self._give_up(sorted(self._numbers[place] for place in places if place in self._numbers))
        for place in [place for place in self._waiting if place[0] not in kept]:
            group, index, future = self._waiting.pop(place)
            future.cancel()
            self._journal_has(group, index)

    def lose_engine(self) -> None:
        """Forgets the samples in the engine, which will be requested again."""
        self._give_up(list(self._sampled))
        self._unsettled |= self._known.keys()

    def take_given_up(self) -> list[int]:
        """Returns the numbers of requests given up since the last call, which the engine may drop."""
        taken, self._given_up = self._given_up, []
        return taken

    def ask(self, running: Sequence[RunningGroup]) -> None:
        """Requests the environment's replies to all turns that have ended."""
        if self.conversations is None:
            return
        self.conversations.journal.begin()
        for group in running:
            for index, rollout in enumerate(group.rollouts):
                if rollout.awaits_reply and (id(group), index) not in self._waiting:
                    future = self.conversations.ask(group.item.problem, rollout)
                    self._waiting[id(group), index] = group, index, future
                    future.add_done_callback(lambda _: self.on_reply())

    def replies(self) -> set[Place]:
        """Places whose replies have come."""
        return {place for place, (*_, future) in self._waiting.items() if future.done()}

    def waiting(self, group: RunningGroup) -> list[int]:
        """Samples of a group that wait for a reply, in order."""
        return [index for index in range(len(group.rollouts)) if (id(group), index) in self._waiting]

    def take_replies(self, group: RunningGroup, numbers: Sequence[int]) -> None:
        """Continues these samples of a group, which wait for replies that have come."""
        for index in numbers:
            reply = self._waiting[id(group), index][2].result()
            del self._waiting[id(group), index]
            assert self.conversations is not None
            self._journal_has(group, index)
            self._unsettled.add(id(group))
            group.rollouts[index] = self.conversations.answered(group.rollouts[index], reply)

    def begin_scoring(self, groups: Sequence[RunningGroup]) -> None:
        """Notes that groups are being scored."""
        self._scored |= {id(group): group for group in groups}

    def end_scoring(self, groups: Sequence[RunningGroup]) -> None:
        """Notes that groups are scored."""
        for group in groups:
            self._scored.pop(id(group), None)

    def _give_up(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.leave(number)
        self._given_up += numbers

    def _journal_has(self, group: RunningGroup, index: int) -> None:
        assert self.conversations is not None
        self.conversations.journal.take(group.rollouts[index])
