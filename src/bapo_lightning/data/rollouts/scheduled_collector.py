"""Fills rollout batches in the order that a recorded schedule gives, so that an asynchronous run repeats.

    schedule.jsonl: visit  sync  pass  metrics | sampled  scored  visit  take  sync  metrics | pass ...
                    trainer's update 0 ......... | during it ....   update 1 .............. |

There is no second thread: at its next visit the trainer first does what generation did during the update. A
pass is sampled at its beginning, with the weights that the engine had then, and takes effect at its end. The
passes in between are in the checkpoints, so that a resumed run never needs weights older than its own.

With the settings of the recorded run, everything is equal to the bit. With another objective the schedule is
the same but its content differs: groups may finish in other passes, and passes are added if a batch is short
of groups, so that ages stay within the bound.

In a stream every decoding step has its recorded place, the same weights and the same other requests; replies
are taken, and groups scored together, as recorded. If the recorded run lost its engine or was resumed, the
engine's requests are dropped here as well, and restart with the tokens that they had.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from bapo_lightning.data.rollouts.collector import Collector, TrainerState
from bapo_lightning.data.rollouts.group_state import ArrayStore, pack_continued, unpack_continued
from bapo_lightning.data.rollouts.running_group import STEPS, RunningGroup, SampledPass, place
from bapo_lightning.data.rollouts.schedule import TRAINER_EVENTS, Row, TrainerEvent, name_of
from bapo_lightning.data.rollouts.stream_scheduler import StreamScheduler
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
    # Of a stream: complete groups by the pass that completed them, and the version to score them at.
    _to_score: deque[tuple[list[RunningGroup], int]] = field(default_factory=deque, init=False)

    def __post_init__(self) -> None:
        self._stream = self.scheduler if isinstance(self.scheduler, StreamScheduler) else None

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
        """Returns its place in the schedule, the pass that has not ended, and groups not scored there."""
        self._go_on()  # while the engine has the weights of the update that is being saved
        running = self._pass
        return {
            "next": self._next,
            "trainer": [self._trainer.version, self._trainer.clock],
            "scored_version": self._scored_version,
            "added": self._added,
            "rounds": running and running.rounds,
            "steps": running and running.steps,
            "to_score": [[[name_of(group) for group in groups], at] for groups, at in self._to_score],
            "pass": running and [
                [request.group, request.index, pack_continued(store, running.continued[number])]
                for number, request in enumerate(running.requests)
            ],
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any], store: ArrayStore) -> None:
        """Restores a state; the engine has no running responses then."""
        self._next, self._trainer = state["next"], TrainerState(*state["trainer"])
        self._scored_version, self._added = state["scored_version"], state.get("added", 0)
        self._pass = None
        if state["pass"] is not None:
            places = [place(group, index) for group, index, _ in state["pass"]]
            pieces = {row: unpack_continued(store, packed) for row, (*_, packed) in enumerate(state["pass"])}
            self._pass = SampledPass(places, pieces, 0.0, state.get("rounds", ()), state.get("steps", 0))
        if self._stream is not None:
            named = {name_of(group): group for group in self._stream.running}
            for names, version in state["to_score"]:
                self._to_score.append(([named[name] for name in names], version))
                self._stream.begin_scoring(self._to_score[-1][0])
            self._stream.note("resumed")

    def _visit(self, state: TrainerState) -> None:
        self._follow("visit")
        self._trainer = state
        self.scheduler.note("visit", clock=state.clock, version=state.version)

    def _follow(self, event: TrainerEvent) -> None:
        self._go_on()
        if (recorded := self.schedule[self._next]["do"]) != event:
            raise TrainingError(
                f"row {self._next + 1} of the schedule is {recorded!r}, here it is {event!r}: this run "
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
                self._end_pass(self._pass, row)
            case "scored":
                self._score()
            case "replies" if self._stream is not None:
                self._stream.take_replies(row["groups"])
            case "resumed" if self._stream is not None:
                self._resume(self._stream)
            case "evict":
                self.scheduler.drop_late(self._trainer.version)

    def _recorded(self) -> Row:
        """Returns the row that ended the next pass, which describes how the pass was sampled."""
        rows = (self.schedule[number] for number in range(self._next, len(self.schedule)))
        return next((row for row in rows if row["do"] == "sampled"), {})

    def _resume(self, stream: StreamScheduler) -> None:
        """Drops what the recorded run lost when it was resumed in a new process."""
        self._pass = None
        stream.forget()
        for groups, _ in self._to_score:
            stream.end_scoring(groups)
        self._to_score.clear()
        stream.note("resumed")

    def _sample(self, recorded: Row) -> SampledPass:
        requests = self.scheduler.schedule(self._trainer.clock, self.needed, self._trainer.version)
        rounds, steps = recorded.get("rounds", ()), recorded.get("steps", STEPS)
        sampled = self.scheduler.sample(requests, once=True, rounds=rounds, steps=steps)
        if sampled.is_lost:
            # A restarted engine would get the trainer's present weights, and this pass may need older ones.
            raise EngineError(
                "the rollout engine died while a recorded schedule was followed; resume=auto continues from "
                "the last checkpoint"
            )
        return sampled

    def _end_pass(self, sampled: SampledPass, recorded: Row) -> None:
        self._pass, self._scored_version = None, self._trainer.version
        is_lost = recorded.get("lost", False)
        finished = self.scheduler.postprocess(replace(sampled, continued={}) if is_lost else sampled)
        if self._stream is not None:
            if is_lost:
                self._stream.forget()
            if finished or recorded.get("finished"):  # keeps the places of "scored" rows in other content
                self._to_score.append((finished, self._scored_version))

    def _score(self) -> None:
        finished, version = self.scheduler.finished, self._scored_version
        if self._stream is not None:
            finished, version = self._to_score.popleft() if self._to_score else ([], 0)
            if not finished:
                return
        start = time.perf_counter()
        groups = self.sampler.score(finished, version)
        self.scheduler.add_scored(finished, groups, time.perf_counter() - start)

    def _add_pass(self) -> None:
        self.scheduler.statistics.added_passes += 1
        self._added += 1
        if self._pass is None:
            if self._stream is not None:
                waiting, running = self._stream.waiting, self._stream.running
                self._stream.take_replies([[name_of(group), waiting(group)] for group in running])
            if self.sampler.engine.version != self._trainer.version:
                self.scheduler.note("sync")
                self.refresh_engine()
            self._pass = self._sample({})
        self._end_pass(self._pass, {})
        self._score()
        while self._to_score:
            self._score()
