"""Actors on the nodes of a cluster: where they start, what they work on, which are lost.

    free place on a node -> greeting -> making -> made --(weights, proof)--> ready -> lost
                              |           |                                    |
                              +--refused--+   place is free again <------------+

Ray restarts no actor and repeats no call here: a restarted actor has no weights, so its calls must wait for
the weights and their proof.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray

from bapo_lightning.extras.ray.joining import LOOK_SECONDS, check_cluster, room, while_alive
from bapo_lightning.extras.ray.members import STARTING, Lost, Member, Stage, start
from bapo_lightning.extras.ray.versions import differences, versions
from bapo_lightning.system.errors import BapoLightningError, EngineError, Outcome
from bapo_lightning.system.phases import advance

LATE_SECONDS = 60.0  # that a start waits for the others once one engine was made or failed
MOST_LOSSES = 5  # of the same requests, which are then considered the cause


class NoneLeft(Exception):
    """No actor is left that could continue. `done` has the values of the finished tasks by number."""

    def __init__(self, reason: str, done: dict[int, Any] | None = None) -> None:
        super().__init__(reason)
        self.done = done or {}


@dataclass(eq=False)
class Fleet:
    """All actors of a run. Only `close` may be called during another call."""

    wanted: int | None  # actors; None: as many as there is room for
    cpus: float  # of each
    gpus: float
    recipe: tuple[Any, ...]  # arguments of EngineActor.make
    deadline_seconds: float  # an actor that needs longer for a call is considered dead
    start_seconds: float  # the same for its start
    # Starts the proof of a newcomer and returns whether it did; judges the answer.
    catch_up: Callable[[Member], bool]
    agrees: Callable[[Any], bool]
    members: list[Member] = field(default_factory=list, init=False)
    failures: list[BapoLightningError] = field(default_factory=list, init=False)  # of starts
    counts: Counter[str] = field(default_factory=Counter, init=False)  # since the start of the run
    _refused: set[str] = field(default_factory=set, init=False)  # nodes
    _num_started: int = field(default=0, init=False)  # members so far
    _closed: bool = field(default=False, init=False)

    @property
    def ready(self) -> list[Member]:
        """Members that hold proven weights."""
        return [member for member in self.members if member.stage is Stage.READY]

    def grow(self) -> None:
        """Starts actors on the emptiest nodes with room, up to the wanted number."""
        if self._closed:
            return
        rooms = while_alive(lambda: room(self.cpus, self.gpus))
        places = {node: count for node, count in rooms.items() if node not in self._refused}
        wanted = sum(places.values()) if self.wanted is None else self.wanted
        taken = Counter(member.node for member in self.members)
        while len(self.members) < wanted:
            free = [node for node, count in places.items() if taken[node] < count]
            if not free:
                return
            node = min(free, key=lambda node: taken[node])
            taken[node] += 1
            self.members.append(start(self._num_started, node, self.cpus, self.gpus))
            self._num_started += 1

    def settle(self) -> None:
        """Waits until starting actors are made. Raises EngineError, or a constructor's own, if none is."""
        end, look = (time.monotonic() + seconds for seconds in (self.start_seconds, LATE_SECONDS))
        share = f"{self.cpus:g} CPUs and {self.gpus:g} GPUs"
        while any(member.stage in STARTING for member in self.members) and time.monotonic() < end:
            self.step()
            if self.failures or any(member.stage is Stage.MADE for member in self.members):
                end = min(end, time.monotonic() + LATE_SECONDS)
            if time.monotonic() > look:
                look = end
                for member in self.members:
                    if member.stage is Stage.GREETING:
                        say(f"{member} has not started: others may use its {share} there")
        if not any(member.stage not in STARTING for member in self.members):
            if self.failures:
                raise self.failures[-1]
            raise EngineError(
                f"no node of the Ray cluster has room for an engine of {share}; write smaller "
                "rollout.engine.cpus or gpus, or add a node"
            )
        self.failures.clear()

    def call_members(self, members: Sequence[Member], method: str, *arguments: Any) -> dict[Member, Any]:
        """Values of the same call to several living members. Raises NoneLeft, or an engine's own error."""
        return self.each(method, dict.fromkeys(members, arguments))

    def each(self, method: str, members: Mapping[Member, tuple[Any, ...]]) -> dict[Member, Any]:
        """The same with separate arguments for each; newcomers are proven in the meantime."""
        for member in self.members:
            if member.stage is Stage.MADE:
                self._catch_up(member)
        for member, arguments in members.items():
            member.ask(method, *arguments)
        outcomes: dict[Member, Outcome] = {}
        while any(member in self.members and member not in outcomes for member in members):
            outcomes |= {member: outcome for member, outcome in self.step() if member in members}
        if not outcomes:
            raise NoneLeft("no engine of the fleet is left")
        return {member: outcome.result() for member, outcome in outcomes.items()}

    def share(self, method: str, tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Values of one call for each task, in order, from any free member; tasks of a lost member go to
        another. Raises NoneLeft, also for a task that too many were lost with, or an engine's own error.
        """
        waiting, done = deque(range(len(tasks))), dict[int, Any]()
        working: dict[Member, int] = {}
        losses: Counter[int] = Counter()
        for member in self.members:
            if member.stage is Stage.MADE:
                self._catch_up(member)
        while len(done) < len(tasks):
            for member in self.ready:
                if waiting and member not in working:
                    working[member] = waiting.popleft()
                    member.ask(method, *tasks[working[member]])
            if not self.ready:
                raise NoneLeft("no engine of the fleet is left", done)
            for member, outcome in self.step():
                if member in working:
                    done[working[member]] = outcome.result()
                    del working[member]
                    advance(len(outcome.value))
            for member in [member for member in working if member not in self.members]:
                number = working.pop(member)
                waiting.appendleft(number)
                losses[number] += 1
                self.counts["reissued"] += len(tasks[number][0])
                if losses[number] >= MOST_LOSSES:
                    raise NoneLeft(f"{MOST_LOSSES} engines were lost with the same requests", done)
        return [done[number] for number in range(len(tasks))]

    def step(self) -> list[tuple[Member, Outcome]]:
        """Waits at most a second for the end of a call; returns what ready members did. Drops dead and
        overdue members. Raises EngineError without a cluster.
        """
        check_cluster()
        busy = {member.call: member for member in self.members if member.call is not None}
        ended = ray.wait(list(busy), num_returns=1, timeout=LOOK_SECONDS)[0] if busy else []
        outcomes = []
        for member in (busy[reference] for reference in ended):
            try:
                outcome = member.outcome()
            except Lost as loss:
                self.lose(member, str(loss))
                continue
            if member.stage is Stage.READY:
                outcomes.append((member, outcome))
            else:
                self._take_on(member, outcome)
        for member in [member for member in self.members if member.call is not None]:
            seconds = self.start_seconds if member.stage in STARTING else self.deadline_seconds
            if time.monotonic() - member.since > seconds:
                self.lose(member, f"it did not answer within {seconds:g} s")
        return outcomes

    def lose(self, member: Member, reason: str) -> None:
        """Ends an actor that is dead or counts as dead, and starts another in place of one that worked."""
        worked = member.stage is Stage.READY
        self._drop(member)
        if self._closed:
            return
        if worked:
            self.counts["lost"] += 1
            self.grow()
        else:
            self.failures.append(EngineError(f"the rollout engine did not start: {member}: {reason}"))
        say(f"{member} was {'lost' if worked else 'not started'} ({reason}); {len(self.ready)} are ready")

    def close(self) -> None:
        """Ends all actors. A call in another thread ends with NoneLeft."""
        self._closed = True
        for member in list(self.members):
            self._drop(member)

    def _take_on(self, member: Member, outcome: Outcome) -> None:
        if outcome.error is not None:
            self._refuse(member, outcome.error)
        elif member.stage is Stage.GREETING:
            reported, member.process = outcome.value
            if wrong := differences(versions(), reported):
                self._refuse(member, EngineError(f"its node has {wrong}"))
            else:
                member.stage = Stage.MAKING
                member.ask("make", *self.recipe)
        elif member.stage is Stage.MAKING:
            member.stage, member.wanted = Stage.MADE, outcome.value
            self._catch_up(member)
        elif self.agrees(outcome.value):
            member.stage = Stage.READY
            self.counts["joined"] += 1
        else:
            member.stage, member.held_back = Stage.MADE, True

    def _catch_up(self, member: Member) -> None:
        if not member.held_back and self.catch_up(member):
            member.stage = Stage.PROVING

    def _refuse(self, member: Member, error: BapoLightningError) -> None:
        self._drop(member)
        self._refused.add(member.node)
        self.counts["refused"] += 1
        self.failures.append(error)
        say(f"{member} was refused: {error}")

    def _drop(self, member: Member) -> None:
        with suppress(ValueError):
            self.members.remove(member)
        member.end()


def say(text: str) -> None:
    """Tells the user."""
    print(f"fleet: {text}", file=sys.stderr, flush=True)
