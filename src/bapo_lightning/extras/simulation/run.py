"""One run in virtual time. The scheduler, its rules, the collectors' rules and the replay queue are the same
as in training; only tokens, weights and the clock are not real.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from bapo_lightning.data.batches.replay_queue import ReplayQueue
from bapo_lightning.data.problems.stream import ProblemStream
from bapo_lightning.data.rollouts.async_protocol import AsyncProtocol
from bapo_lightning.data.rollouts.collector import SyncCollector, TrainerState, scheduler_kind
from bapo_lightning.data.rollouts.regime import Regime
from bapo_lightning.data.rollouts.rules import Rules
from bapo_lightning.data.rollouts.running_group import RunningGroup
from bapo_lightning.data.rollouts.sampler import RolloutSampler
from bapo_lightning.data.rollouts.schedule import ScheduleRecorder
from bapo_lightning.extras.simulation.engine import VirtualEngine, VirtualRequest, unwritten
from bapo_lightning.extras.simulation.fleet import Failures, VirtualFleet
from bapo_lightning.extras.simulation.fleet_stream import FleetStream
from bapo_lightning.extras.simulation.times import ServiceTimes
from bapo_lightning.rollout.engine import GenerationRequest, SamplingParams
from bapo_lightning.types import Group, Problem, Sample, Score, ScoreStatus, WorkItem

Process = Generator[float | None, None, None]
NUM_PROBLEMS = 1000  # of the stream; only their numbers matter
WRONG, RIGHT = Score(0.0, ScoreStatus.WRONG), Score(1.0, ScoreStatus.CORRECT)


class Clock:
    """Virtual time for processes that are generators: they take turns in the order of their times, and at
    the same time in order of arrival.

    A process yields seconds to sleep, or None to wait until something changes. This needs no more than a
    heap; SimPy would be one more dependency, for a loop that its events make several times slower.
    """

    def __init__(self) -> None:
        self.now = 0.0  # seconds
        self._due: list[tuple[float, int, Process]] = []
        self._waiting: list[Process] = []
        self._order = count()

    def start(self, process: Process) -> None:
        """Lets a process start now."""
        heapq.heappush(self._due, (self.now, next(self._order), process))

    def changed(self) -> None:
        """Wakes all processes that wait for a change, after the present one."""
        waiting, self._waiting = self._waiting, []
        for process in waiting:
            self.start(process)

    def run(self, has_ended: Callable[[], bool]) -> None:
        """Runs until `has_ended`. Raises RuntimeError if every process waits for another."""
        while not has_ended():
            if not self._due:
                raise RuntimeError("every process waits for a change that none can make")
            self.now, _, process = heapq.heappop(self._due)
            for seconds in process:  # one step; a process that has ended makes none
                if seconds is None:
                    self._waiting.append(process)
                else:
                    heapq.heappush(self._due, (self.now + seconds, next(self._order), process))
                break


@dataclass(frozen=True)
class Setting:
    """Rules of what is trained, and in which order."""

    regime: Regime
    group_size: int
    groups_per_batch: int
    num_batches: int  # number that are simulated
    lengths: np.ndarray  # of responses, equally likely, int64
    prompt_tokens: int = 0
    rules: Rules = field(default_factory=Rules)  # of admission
    uniform_share: float = 0.0  # of groups whose scores are all equal
    failures: Failures = field(default_factory=Failures)
    seed: int = 0
    # Generation continues as if further batches followed, so that the end looks like the middle.
    is_endless: bool = True


@dataclass(frozen=True)
class VirtualUpdate:
    """One update, and the data it trained on."""

    visited: float  # seconds at which the trainer was ready for it
    begin: float  # and at which it had groups, and the engine weights
    ages: Counter[int]  # response tokens by age in updates
    starts: Counter[int]  # responses by age of their first token


@dataclass(frozen=True, slots=True)
class VirtualSampler(RolloutSampler):
    """Draws lengths and scores by the number of the problem: equal in every cell of a study."""

    engine: Any  # a VirtualEngine
    reward: Any  # never called
    lengths: np.ndarray = field(kw_only=True)  # equally likely
    uniform_share: float = 0.0  # of groups whose scores are all equal
    drawn: dict[WorkItem, tuple[list[int], bool]] = field(default_factory=dict)  # lengths, whether uniform

    def _request(
        self, number: int, group: RunningGroup, index: int, partial_tokens: int
    ) -> GenerationRequest:
        rollout, lengths = group.rollouts[index], self._drawn(group.item, len(group.rollouts))[0]
        context = unwritten(len(rollout.prompt_ids) + rollout.length)
        limit = min(partial_tokens, self.max_new_tokens - rollout.length)
        return VirtualRequest(context, limit, 0, number, index, lengths[index] - rollout.length)

    def score(self, groups: Sequence[RunningGroup], version: int) -> list[Group]:
        """Scores groups: all wrong, or every other answer right."""
        scored = []
        for group in groups:
            uniform = self._drawn(group.item, len(group.rollouts))[1]
            scores = [WRONG if uniform or index % 2 else RIGHT for index in range(len(group.rollouts))]
            samples = tuple(
                Sample(rollout, "", score, score.value)
                for rollout, score in zip(group.rollouts, scores, strict=True)
            )
            zeros = (0.0,) * len(samples)
            scored.append(Group(group.item.problem, samples, zeros, group.item.epoch, version))
        return scored

    def _drawn(self, item: WorkItem, group_size: int) -> tuple[list[int], bool]:
        if item not in self.drawn:
            draws = np.random.default_rng((self.seed, item.epoch, int(item.problem.id)))
            lengths = self.lengths[draws.integers(len(self.lengths), size=group_size)].tolist()
            self.drawn[item] = lengths, bool(draws.random() < self.uniform_share)
        return self.drawn[item]


class VirtualRun:
    """Simulates a run; read `updates`, `engine` and `scheduler.statistics` after `run`."""

    def __init__(self, setting: Setting, times: ServiceTimes, schedule: Path | None = None) -> None:
        """`schedule`: file for the rows of the asynchronous schedule, as a run writes them."""
        regime, self._times, self.setting = setting.regime, times, setting
        self.clock = Clock()
        fleet = VirtualFleet(times.copies, times.engine, setting.failures, setting.seed)
        context, mean = regime.stream, float(setting.lengths.mean())
        stream = None if context is None else FleetStream(fleet, context, mean)
        sync = times.sync_seconds
        load = sync if times.load_seconds is None else times.load_seconds
        self.engine = VirtualEngine(fleet, sync, load, lambda: self.clock.now, stream=stream)
        prompt = unwritten(setting.prompt_tokens)
        self.sampler = VirtualSampler(
            engine=self.engine,
            tokenizer=None,
            prompt=lambda tokenizer, problem: prompt,
            reward=None,
            sampling=SamplingParams(1.0, ()),
            max_new_tokens=regime.max_new_tokens,
            seed=setting.seed,
            rules=setting.rules,
            lengths=setting.lengths,
            uniform_share=setting.uniform_share,
        )
        problems = [Problem(str(number), "", "") for number in range(NUM_PROBLEMS)]
        ahead = 2 + regime.age_bound // regime.updates_per_rollout_batch if setting.is_endless else 0
        self.scheduler = scheduler_kind(regime)(
            ProblemStream(problems, setting.seed),
            self.sampler,
            regime,
            setting.group_size,
            setting.groups_per_batch,
            setting.num_batches + ahead,
            [ScheduleRecorder(schedule)] if schedule else [],
        )
        self.updates: list[VirtualUpdate] = []
        self.entered: list[int] = []  # response tokens of each rollout batch
        self.end = 0.0
        self._queue = ReplayQueue(regime.epochs, regime.minibatches, setting.seed)
        self._version = 0
        # For a stream: scored groups that generation has not noticed; when the scorer is free; whether
        # decoding steps are made now; number of events that may change what runs.
        self._scored: deque[tuple[list[RunningGroup], list[Group]]] = deque()
        self._scorer_free = 0.0  # seconds
        self._in_steps = False
        self._events = 0

    def run(self) -> None:
        """Simulates all updates."""
        self.clock.start(self._train())
        num_updates = self.setting.num_batches * self.setting.regime.updates_per_rollout_batch
        self.clock.run(lambda: self._version == num_updates)
        self.end = self.clock.now

    def _train(self) -> Process:
        # As `RolloutDataModule.next_batch` lets the trainer continue.
        regime, clock, size = self.setting.regime, self.clock, self.setting.groups_per_batch
        protocol = AsyncProtocol(self.scheduler, self._refresh_engine, size)
        if regime.async_generation:
            clock.start(self._generate(protocol))
        for _ in range(self.setting.num_batches * regime.updates_per_rollout_batch):
            visited = clock.now
            yield from self._overlapping(protocol) if regime.async_generation else self._in_turns()
            minibatch = self._queue.take()
            ages, starts = self._ages(minibatch), self._starts(minibatch)
            self.updates.append(VirtualUpdate(visited, clock.now, ages, starts))
            yield self._times.update([s.rollout.length for group in minibatch for s in group.samples])
            self._version += 1
            clock.changed()

    def _in_turns(self) -> Process:
        if len(self._queue):
            return
        collector = SyncCollector(self.scheduler, self.sampler, self._refresh_engine)
        before = self.scheduler.statistics.num_samples
        self._enter(collector.next_groups(self.setting.groups_per_batch, self._state))
        judged = self.scheduler.statistics.num_samples - before
        yield self.engine.take_owed() + self._reward_seconds(judged)

    def _overlapping(self, protocol: AsyncProtocol) -> Process:
        protocol.visit(self._state)
        self._events += 1
        while self._in_steps and self.engine.version != self._version:
            yield None
        if len(self._queue):
            protocol.serve_weights()
        else:
            while not protocol.has_batch(protocol.needed):
                self.clock.changed()
                yield self.engine.take_owed() or None
            self._enter(protocol.take(protocol.needed))
            self._events += 1
        self.clock.changed()
        yield self.engine.take_owed()

    def _generate(self, protocol: AsyncProtocol) -> Process:
        # As the threads of `AsyncCollector` do. Steps of a stream in which no response starts or ends are
        # made without consulting the scheduler, until something else happens.
        is_stream = self.setting.regime.is_stream
        while True:
            while self._scored:
                protocol.scored(*self._scored.popleft(), 0.0)
                self.clock.changed()
            if not protocol.may_begin():
                if protocol.wants_weights:
                    self.clock.changed()
                yield None
            elif (pause := self.engine.ready_at - self.clock.now) > 0:
                yield pause
            else:
                self._in_steps = is_stream
                sampled, events = self.scheduler.sample(protocol.begin()), self._events
                yield self.engine.take_owed()
                finished, version = protocol.sampled(sampled)
                if not is_stream:
                    yield from self._score(finished, version)
                elif finished:
                    self.clock.start(self._score(finished, version))
                while is_stream and events == self._events and not finished and self.engine.stream_on():
                    yield self.engine.take_owed()
                self._in_steps = False
                self.clock.changed()

    def _score(self, finished: list[RunningGroup], version: int) -> Process:
        # As the scoring thread does, one call after the other.
        groups = self.sampler.score(finished, version)
        seconds = self._reward_seconds(sum(len(group.samples) for group in groups))
        self._scorer_free = max(self._scorer_free, self.clock.now) + seconds
        yield self._scorer_free - self.clock.now
        self._scored.append((finished, groups))
        self._events += 1
        self.clock.changed()

    @property
    def _state(self) -> TrainerState:
        return TrainerState(self._version, self._version)

    def _refresh_engine(self) -> None:
        if self.engine.version != self._version:
            self.engine.load(self._version)

    def _enter(self, groups: list[Group]) -> None:
        self.entered.append(sum(group.num_tokens for group in groups))
        self._queue.put(groups)

    def _reward_seconds(self, num_samples: int) -> float:
        return self._times.reward_seconds * num_samples

    def _ages(self, groups: list[Group]) -> Counter[int]:
        # Tokens above the bound are masked.
        ages: Counter[int] = Counter()
        for group in groups:
            for sample in group.samples:
                for segment in sample.rollout.segments:
                    age = self._version - segment.version
                    if age <= self.setting.regime.age_bound:
                        ages[age] += len(segment.token_ids)
        return ages

    def _starts(self, groups: list[Group]) -> Counter[int]:
        rollouts = (sample.rollout for group in groups for sample in group.samples)
        return Counter(self._version - rollout.segments[0].version for rollout in rollouts)
