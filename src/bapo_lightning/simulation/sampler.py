"""Problems, responses and an engine without content: tokens are only counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from bapo_lightning.data.rollouts.running_group import RunningGroup
from bapo_lightning.data.rollouts.sampler import RolloutSampler
from bapo_lightning.rollout.engine import UNSYNCED_VERSION, Generation, GenerationRequest, SamplingParams
from bapo_lightning.simulation.fleet import FleetPass, VirtualFleet
from bapo_lightning.types import FinishReason, Group, Sample, Score, ScoreStatus, Segment, WorkItem

NUM_PROBLEMS = 1000  # of the stream; only their numbers matter
WRONG, RIGHT = Score(0.0, ScoreStatus.WRONG), Score(1.0, ScoreStatus.CORRECT)


@dataclass(frozen=True, slots=True)
class Unwritten:
    """So many tokens, or log-probs, in place of an array."""

    count: int

    def __len__(self) -> int:
        return self.count

    def __add__(self, other: Unwritten) -> Unwritten:
        return Unwritten(self.count + other.count)


@dataclass(frozen=True, slots=True)
class VirtualRequest(GenerationRequest):
    """A request that knows where its response will end."""

    left: int = 0  # tokens to the end of the response


@dataclass(eq=False)
class VirtualEngine:
    """A fleet behind those methods of `RestartingEngine` that collectors call; `owed` adds up its time."""

    fleet: VirtualFleet
    sync_seconds: float
    now: Callable[[], float]
    version: int = UNSYNCED_VERSION
    ready_at: float = 0.0  # seconds; the last weights are there
    owed: float = 0.0  # seconds of calls that the clock does not know of yet
    passes: list[tuple[float, FleetPass]] = field(default_factory=list)  # with their begins
    syncs: list[tuple[float, float]] = field(default_factory=list)  # begins and seconds

    def generate(self, requests: Sequence[GenerationRequest], sampling: SamplingParams) -> list[Generation]:
        """Samples all requests."""
        asked = cast("Sequence[VirtualRequest]", requests)
        tokens = [min(request.max_new_tokens, request.left) for request in asked]
        work = [(len(request.token_ids), count) for request, count in zip(asked, tokens, strict=True)]
        begin = self.now() + self.owed
        self.passes.append((begin, self.fleet.run(begin, work)))
        self.owed += self.passes[-1][1].seconds
        return [
            Generation(
                Segment(cast(Any, Unwritten(count)), cast(Any, Unwritten(count)), self.version),
                FinishReason.STOP if count == request.left else FinishReason.LENGTH,
            )
            for request, count in zip(asked, tokens, strict=True)
        ]

    def load(self, version: int) -> None:
        """Takes weights."""
        self.version = version
        self.syncs.append((self.now() + self.owed, self.sync_seconds))
        self.owed += self.sync_seconds
        self.ready_at = self.now() + self.owed

    def take_owed(self) -> float:
        """Returns the seconds since the last call, for the clock."""
        owed, self.owed = self.owed, 0.0
        return owed

    def sleep(self) -> None:
        """Does nothing."""


@dataclass(frozen=True, slots=True)
class VirtualSampler(RolloutSampler):
    """Draws lengths and scores by the number of the problem: equal in every cell of a study."""

    lengths: np.ndarray = field(default_factory=lambda: np.ones(1, np.int64))  # equally likely
    uniform_share: float = 0.0  # of groups whose scores are all equal
    drawn: dict[WorkItem, tuple[list[int], bool]] = field(default_factory=dict)  # lengths, whether uniform

    def requests(self, groups: Sequence[RunningGroup], partial_tokens: int) -> list[GenerationRequest]:
        """See `RolloutSampler.requests`."""
        found: list[GenerationRequest] = []
        for number, group in enumerate(groups):
            lengths = self._drawn(group.item, len(group.rollouts))[0]
            for index, rollout in enumerate(group.rollouts):
                if rollout.finish is None:
                    sampled = rollout.length
                    context = cast(Any, Unwritten(len(rollout.prompt_ids) + sampled))
                    limit = min(partial_tokens, self.max_new_tokens - sampled)
                    found.append(VirtualRequest(context, limit, 0, number, index, lengths[index] - sampled))
        return found

    def score(self, groups: Sequence[RunningGroup], version: int) -> list[Group]:
        """Scores groups: all wrong, or every other answer right."""
        return [self._scored(group, version) for group in groups]

    def _scored(self, group: RunningGroup, version: int) -> Group:
        uniform = self._drawn(group.item, len(group.rollouts))[1]
        scores = [WRONG if uniform or index % 2 else RIGHT for index in range(len(group.rollouts))]
        samples = tuple(
            Sample(rollout, "", score, score.value)
            for rollout, score in zip(group.rollouts, scores, strict=True)
        )
        return Group(group.item.problem, samples, (0.0,) * len(samples), group.item.epoch, version)

    def _drawn(self, item: WorkItem, group_size: int) -> tuple[list[int], bool]:
        if item not in self.drawn:
            draws = np.random.default_rng((self.seed, item.epoch, int(item.problem.id)))
            lengths = self.lengths[draws.integers(len(self.lengths), size=group_size)].tolist()
            self.drawn[item] = lengths, bool(draws.random() < self.uniform_share)
        return self.drawn[item]
