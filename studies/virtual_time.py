"""Asynchronous training in virtual time: tokens, weights and updates are real, durations are given.

    collector    the rules of `AsyncProtocol` in one thread; passes of the engine and updates take their time
    runs_forked  launcher whose runs start from one process that has imported everything

A run is equal to the bit on every machine that computes alike, however busy it is, and records the ages that
its durations cause. It is not resumed: a run that was stopped begins again.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import random
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Gt

from bapo_lightning.configuration.sections import Section
from bapo_lightning.data.rollouts.async_protocol import AsyncProtocol
from bapo_lightning.data.rollouts.collector import Collector, TrainerState, collector_for
from bapo_lightning.data.rollouts.running_group import STEPS, RunningGroup, SampledPass
from bapo_lightning.data.rollouts.schedule import TrainerEvent, name_of
from bapo_lightning.data.rollouts.stream_scheduler import StreamScheduler
from bapo_lightning.system.errors import ConfigError
from bapo_lightning.system.run_folder.text_file import write_json
from bapo_lightning.system.values import NonNegative
from bapo_lightning.tools.sweeps.job import log_file
from bapo_lightning.tools.sweeps.launchers import Ended, Jobs
from bapo_lightning.types import Group

TIMES_FILE = "virtual_times.json"  # of a run: times at which its updates began


class Durations(Section):
    """Durations in virtual time; an update takes 1."""

    step: NonNegative = 0.0  # of a decoding step of all rows; a stream with replies needs more than 0
    reply: NonNegative = 0.0  # mean, of the environment's reply to a turn that does not end the answer
    spread: Annotated[float, Gt(0)] = 1.0  # standard deviation of the logarithm of a reply's


@dataclass(eq=False)
class VirtualCollector(Collector):
    """Lets generation and training take turns in the order of their virtual times."""

    needed: int  # groups in a batch
    durations: Durations
    now: float = field(default=0.0, init=False)
    begins: list[float] = field(default_factory=list, init=False)  # times of updates
    _visit_at: float = field(default=0.0, init=False)  # end of the present update
    _pass: tuple[float, SampledPass] | None = field(default=None, init=False)  # its end, and what it made
    # Times at which replies come.
    _replies: dict[tuple[str, int, int], float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._protocol = AsyncProtocol(self.scheduler, self.refresh_engine, self.needed)
        self._stream = self.scheduler if isinstance(self.scheduler, StreamScheduler) else None
        if (talk := self.sampler.conversations) is None:
            return
        if talk.workers:
            raise ConfigError(["environment.workers: replies come in real time; write environment.workers=0"])
        if self._stream is not None and not self.durations.step:
            raise ConfigError(["durations.step=0: replies of a stream would never come; write e.g. 0.03"])

    def next_groups(self, needed: int, state: TrainerState) -> list[Group]:
        """Generates until a batch is there."""
        self._visit(state)
        while not self._protocol.has_batch(needed):
            self._generate(math.inf)
        batch = self._protocol.take(needed)
        self._update()
        return batch

    def between_updates(self, state: TrainerState) -> None:
        """Hands over weights for the next pass."""
        self._visit(state)
        self._protocol.serve_weights()
        self._update()

    def note(self, event: TrainerEvent) -> None:
        """Records the event."""
        self.scheduler.note(event)

    @contextmanager
    def exclusive_engine(self, state: TrainerState) -> Iterator[None]:
        """A validation takes no time."""
        self._visit(state)
        self.note("validation")
        yield

    def _visit(self, state: TrainerState) -> None:
        """Generates until the trainer ends its update; new weights come between the steps of a stream."""
        while self.now < self._visit_at and self._generate(self._visit_at):
            pass
        self.now = max(self.now, self._visit_at)
        if self._stream is not None and self._pass is not None:
            self._generate(math.inf)
        self._protocol.visit(state)

    def _update(self) -> None:
        self.begins.append(self.now)
        self._visit_at = self.now + 1.0

    def _generate(self, until: float) -> bool:
        """Continues to the end of the present or next pass; False if it is later, or without work."""
        if self._pass is None:
            self._take_replies()
            if not self._protocol.may_begin():
                return False
            sampled = self.scheduler.sample(self._protocol.begin(), once=True)
            self._pass = self.now + self.durations.step * self._steps(sampled), sampled
        end, sampled = self._pass
        if end > until:
            return False
        self.now, self._pass = end, None
        finished, version = self._protocol.sampled(sampled)
        self._protocol.scored(finished, self.sampler.score(finished, version), 0.0)
        return True

    def _steps(self, sampled: SampledPass) -> int:
        """Decoding steps of a pass: as many as its longest response, which is whole, has tokens."""
        if self._stream is not None:
            return STEPS
        return max((rollout.length for rollout in sampled.continued.values()), default=0)

    def _take_replies(self) -> None:
        """Lets rollouts continue whose replies have come. A reply that ends an answer comes at once."""
        if self._stream is None or self.sampler.conversations is None:
            return
        due = []
        for group in self.scheduler.running:
            numbers = [
                index for index in self._stream.waiting(group) if self._comes_at(group, index) <= self.now
            ]
            if numbers:
                due.append([name_of(group), numbers])
        self._stream.take_replies(due)

    def _comes_at(self, group: RunningGroup, index: int) -> float:
        """Time of a reply; its duration depends on the problem and not on the rule for stale data."""
        rollout = group.rollouts[index]
        if rollout.turns[-1][-1] in self.sampler.ends:
            return self.now
        key = name_of(group), index, len(rollout.replies)
        if key not in self._replies:
            spread, mean = self.durations.spread, self.durations.reply
            draw = random.Random(f"{self.sampler.seed}/{key}").gauss(-(spread**2) / 2, spread)
            self._replies[key] = self.now + mean * math.exp(draw)
        return self._replies[key]


def train_one(overrides: tuple[str, ...], folder: Path, durations: Durations) -> None:
    """Trains a run in this process, with its console output in a file; leaves an exit code."""
    from bapo_lightning.configuration.compose import compose_run
    from bapo_lightning.configuration.validate import validate
    from bapo_lightning.runs.train import run

    with log_file(folder).open("a", encoding="utf-8") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    collectors: list[VirtualCollector] = []

    def make_collector(scheduler: Any, sampler: Any, trainer: Any, needed: int, *others: Any) -> Collector:
        if not scheduler.regime.async_generation:
            return collector_for(scheduler, sampler, trainer, needed, *others)
        collectors.append(VirtualCollector(scheduler, sampler, trainer.push_weights, needed, durations))
        return collectors[0]

    code = run(validate(compose_run(list(overrides))), make_collector=make_collector)
    for collector in collectors:
        write_json(folder / TIMES_FILE, collector.begins)
    sys.exit(code)


def runs_forked(durations: Durations, todo: Jobs) -> Iterator[Ended]:
    """Makes one run after the other, each in a process that begins with everything imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "bapo_lightning.runs.train", "bapo_lightning.runs.build"])
    for name, job in todo.items():
        shutil.rmtree(job.folder, ignore_errors=True)
        process = context.Process(target=train_one, args=(job.overrides, job.folder, durations))
        process.start()
        process.join()
        yield name, process.exitcode or 0
