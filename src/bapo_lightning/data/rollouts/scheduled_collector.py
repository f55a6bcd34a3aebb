"""Fills rollout batches in the order that a recorded schedule gives, so that an asynchronous run repeats.

    schedule.jsonl: visit  sync  pass  metrics | sampled  scored  visit  take  sync  metrics | pass ...
                    trainer's update 0 ......... | during it ....   update 1 .............. |

There is no second thread: at its next visit the trainer first does what generation did during the update. A
pass is sampled at its beginning, with the weights that the engine had then, and takes effect at its end. The
passes in between are in the checkpoints, so that a resumed run never needs weights older than its own.

With the settings of the recorded run, everything is equal to the bit. With another objective the schedule is
the same but its content differs: groups may finish in other passes, and passes are added if a batch is short
of groups, so that ages stay within the bound.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from bapo_lightning.data.rollouts.collector import Collector, TrainerState
from bapo_lightning.data.rollouts.conversations import Rounds
from bapo_lightning.data.rollouts.group_state import ArrayStore, pack_continued, unpack_continued
from bapo_lightning.data.rollouts.running_group import RunningGroup, SampledPass, place
from bapo_lightning.data.rollouts.schedule import TRAINER_EVENTS, Row, TrainerEvent
from bapo_lightning.system.errors import EngineError, TrainingError
from bapo_lightning.system.printable import say
from bapo_lightning.types import Group


@dataclass(eq=False)
class ScheduledCollector(Collector):
    """Follows a recorded schedule; `refresh_engine` must push weights even if the engine has them."""

    needed: int  # groups in a batch
    schedule: Sequence[Row]
    _next: int = field(default=0, init=False)  # number of the next row
    _trainer: TrainerState = field(default=TrainerState(0, 0), init=False)  # at its last visit
    _pass: SampledPass | None = field(default=None, init=False)
    _scored_version: int = field(default=0, init=False)  # trainer's version when the last pass ended
    _added: int = field(default=0, init=False)  # passes added to the schedule's

    def next_groups(self, needed: int, state: TrainerState) -> list[Group]:
        """Follows the schedule until a batch is taken."""
        self._visit(state)
        self._follow("take")
        self.scheduler.drop_late(state.version)
        while not self.scheduler.has_batch(needed):
            self._add_pass()
            self.scheduler.drop_late(state.version)
        return self.scheduler.take_batch(needed, state.version)

    def between_updates(self, state: TrainerState) -> None:
        """Notes the trainer's progress."""
        self._visit(state)

    def note(self, event: TrainerEvent) -> None:
        """Follows the schedule to this event, and records it."""
        self._follow(event)
        self.scheduler.note(event)
        if event == "end":
            say(f"followed {self._next} rows of a recorded schedule; {self._added} passes were added")

    @contextmanager
    def exclusive_engine(self, state: TrainerState) -> Iterator[None]:
        """Follows the schedule to the validation."""
        self._visit(state)
        self.note("validation")
        yield

    def state_dict(self, store: ArrayStore) -> dict[str, Any]:
        """Returns its place in the schedule, and the pass that has not ended there."""
        self._go_on()  # while the engine has the weights of the update that is being saved
        running = self._pass
        return {
            "next": self._next,
            "trainer": [self._trainer.version, self._trainer.clock],
            "scored_version": self._scored_version,
            "added": self._added,
            "rounds": running and running.rounds,
            "steps": running and running.steps,
            "pass": running and [
                [request.group, request.index, pack_continued(store, running.continued[number])]
                for number, request in enumerate(running.requests)
            ],
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any], store: ArrayStore) -> None:
        """Restores a state."""
        self._next, self._trainer = state["next"], TrainerState(*state["trainer"])
        self._scored_version, self._added = state["scored_version"], state.get("added", 0)
        self._pass = None
        if state["pass"] is not None:
            places = [place(group, index) for group, index, _ in state["pass"]]
            made = {row: unpack_continued(store, packed) for row, (*_, packed) in enumerate(state["pass"])}
            self._pass = SampledPass(places, made, 0.0, state.get("rounds", ()), state.get("steps", 0))

    def _visit(self, state: TrainerState) -> None:
        self._follow("visit")
        self._trainer = state
        self.scheduler.note("visit", clock=state.clock, version=state.version)

    def _follow(self, event: TrainerEvent) -> None:
        self._go_on()
        if (found := self.schedule[self._next]["do"]) != event:
            raise TrainingError(
                f"row {self._next + 1} of the schedule is {found!r}, here it is {event!r}: this run "
                "validates at other updates, or it was recorded by another version"
            )
        self._next += 1

    def _go_on(self) -> None:
        while self._next < len(self.schedule) and self.schedule[self._next]["do"] not in TRAINER_EVENTS:
            self._do(self.schedule[self._next])
            self._next += 1

    def _do(self, row: Row) -> None:
        match row["do"]:
            case "sync":
                self.scheduler.note("sync")
                self.refresh_engine()
            case "pass":
                self._pass = self._sample(self._recorded())
            case "sampled" if self._pass is not None:
                self._end_pass(self._pass, row.get("lost", False))
                self._pass = None
            case "scored":
                self._score()
            case "evict":
                self.scheduler.drop_late(self._trainer.version)

    def _recorded(self) -> Row:
        """Returns the row that ended the next pass, which describes how the pass was sampled."""
        rows = (self.schedule[number] for number in range(self._next, len(self.schedule)))
        return next((row for row in rows if row["do"] == "sampled"), {})

    def _sample(self, recorded: Row) -> SampledPass:
        requests = self.scheduler.schedule(self._trainer.clock, self.needed, self._trainer.version)
        start, rounds = time.perf_counter(), Rounds(recorded.get("rounds", ()))
        continued = self.sampler.continued(requests, self.scheduler.running, once=True, rounds=rounds)
        return whole(SampledPass(requests, continued, time.perf_counter() - start, rounds.taken))

    def _end_pass(self, sampled: SampledPass, lost: bool) -> list[RunningGroup]:
        self._scored_version = self._trainer.version
        return self.scheduler.postprocess(replace(sampled, continued={}) if lost else sampled)

    def _score(self) -> None:
        self._add_scored(self.scheduler.finished, self._scored_version)

    def _add_scored(self, finished: Sequence[RunningGroup], version: int) -> None:
        start = time.perf_counter()
        groups = self.sampler.score(finished, version)
        self.scheduler.add_scored(finished, groups, time.perf_counter() - start)

    def _add_pass(self) -> None:
        self.scheduler.statistics.added_passes += 1
        self._added += 1
        if self._pass is None:
            if self.sampler.engine.version != self._trainer.version:
                self.scheduler.note("sync")
                self.refresh_engine()
            self._pass = self._sample({})
        self._end_pass(self._pass, lost=False)
        self._pass = None
        self._score()


def whole(sampled: SampledPass) -> SampledPass:
    """Returns a pass that was not lost, or raises EngineError."""
    if sampled.is_lost:
        # A restarted engine would get the trainer's present weights, and this pass may need older ones.
        raise EngineError(
            "the rollout engine died while a recorded schedule was followed; resume=auto continues from "
            "the last checkpoint"
        )
    return sampled
