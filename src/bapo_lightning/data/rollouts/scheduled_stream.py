"""Follows the recorded schedule of a stream; see `ScheduledCollector`.

Every decoding step has its recorded place, the same weights and the same other requests; replies are taken,
and groups scored together, as recorded. If the recorded run lost its engine or was resumed, the engine's
requests are dropped here as well, and restart with the tokens that they had.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bapo_lightning.data.rollouts.group_state import ArrayStore
from bapo_lightning.data.rollouts.running_group import STEPS, RunningGroup, SampledPass
from bapo_lightning.data.rollouts.schedule import Row, name_of
from bapo_lightning.data.rollouts.scheduled_collector import ScheduledCollector, whole
from bapo_lightning.data.rollouts.stream_scheduler import StreamScheduler
from bapo_lightning.data.rollouts.streaming import Streaming


@dataclass(eq=False)
class ScheduledStream(ScheduledCollector):
    """Scores groups at the recorded points, and all remaining ones if a batch is short of groups."""

    scheduler: StreamScheduler
    # Complete groups by the call that completed them, and the version to score them at.
    _to_score: deque[tuple[Sequence[RunningGroup], int]] = field(default_factory=deque, init=False)

    def __post_init__(self) -> None:
        self._streaming = Streaming(self.scheduler)

    def state_dict(self, store: ArrayStore) -> dict[str, Any]:
        """Returns its place in the schedule, the unfinished call, and groups that are not scored there."""
        state = super().state_dict(store)
        names = [[[name_of(group) for group in groups], version] for groups, version in self._to_score]
        return state | {"to_score": names}

    def load_state_dict(self, state: dict[str, Any], store: ArrayStore) -> None:
        """Restores a state; the engine has no running responses then."""
        super().load_state_dict(state, store)
        named = {name_of(group): group for group in self.scheduler.running}
        for names, version in state["to_score"]:
            self._put_off([named[name] for name in names], version)
        self.scheduler.note("resumed")

    def _do(self, row: Row) -> None:
        match row["do"]:
            case "replies":
                self.scheduler.take_replies(row["groups"])
            case "resumed":
                self._resume()
            case "sampled" if self._pass is not None:
                number = len(self._to_score)
                super()._do(row)
                if row["finished"] and len(self._to_score) == number:
                    self._put_off([], 0)  # keeps the places of "scored" rows if the content differs
            case _:
                super()._do(row)

    def _resume(self) -> None:
        """Drops what the recorded run lost when it was resumed in a new process."""
        self._pass = None
        self._streaming.forget()
        for groups, _ in self._to_score:
            self.scheduler.in_flight.end_scoring(groups)
        self._to_score.clear()
        self.scheduler.note("resumed")

    def _sample(self, recorded: Row) -> SampledPass:
        requests = self.scheduler.schedule(self._trainer.clock, self.needed, self._trainer.version)
        return whole(self._streaming.sample(requests, recorded.get("steps", STEPS)))

    def _end_pass(self, sampled: SampledPass, lost: bool) -> list[RunningGroup]:
        finished = super()._end_pass(sampled, lost)
        if lost:
            self._streaming.forget()
        if finished:
            self._put_off(finished, self._scored_version)
        return finished

    def _put_off(self, finished: Sequence[RunningGroup], version: int) -> None:
        self.scheduler.in_flight.begin_scoring(finished)
        self._to_score.append((finished, version))

    def _score(self) -> None:
        finished, version = self._to_score.popleft() if self._to_score else ([], 0)
        if finished:
            self._add_scored(finished, version)

    def _add_pass(self) -> None:
        if self._pass is None:
            waiting = self.scheduler.in_flight.waiting
            self.scheduler.take_replies(
                [[name_of(group), waiting(group)] for group in self.scheduler.running]
            )
        super()._add_pass()
        while self._to_score:
            self._score()
