"""Problems, verdicts, and scored responses."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from bapo_lightning.types.rollouts import FinishReason, Reply, Rollout


class ScoreStatus(StrEnum):
    """The verifier's verdict on an answer."""

    CORRECT = "correct"
    WRONG = "wrong"
    UNPARSABLE = "unparsable"  # no final answer was found in the text
    TIMEOUT = "timeout"  # the verifier did not decide within its deadline
    FAILED = "failed"  # the verifier could not decide: too large a number, out of memory, dead


@dataclass(frozen=True, slots=True)
class Problem:
    """One question with a verifiable answer."""

    id: str  # unique in its data set
    prompt: str  # text the policy continues
    answer: str  # gold answer
    source: str = ""  # data set it comes from
    # Input of the data set's own scorer. Left out of comparisons, so that a problem stays hashable.
    metadata: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One use of a problem; epoch and problem id together are unique in a run."""

    problem: Problem
    epoch: int


@dataclass(frozen=True, slots=True)
class Completion:
    """A reward's view of a finished rollout."""

    text: str  # decoded response without end tokens; in a conversation the policy's last turn
    num_tokens: int  # sampled, in all turns
    finish: FinishReason
    turns: tuple[str, ...] = ()  # of the policy, if an environment answers between them
    replies: tuple[Reply, ...] = ()  # of the environment, one to each turn that ended
    is_thought: bool = False  # the context before the text, a prompt or a reply, ends with <think>
    token_ids: Sequence[int] = field(default=(), compare=False, repr=False)  # sampled, in all turns


@dataclass(frozen=True, slots=True)
class Score:
    """Verdict on one answer. `value` is 1.0 or 0.0, unless the reward uses other values."""

    value: float
    status: ScoreStatus
    # Final answer as the verifier read it, its vote in maj@k: equal answers are equal strings. Empty: none.
    answer: str = ""
    parts: tuple[float, ...] = ()  # single unweighted rewards, if the value is a sum of several


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a response, token by token, and their advantages."""

    numbers: array[int]  # typecode "i": number of each token's step, from 0 on
    advantages: array[float]  # typecode "f": advantage of each token's step

    @property
    def count(self) -> int:
        """Number of steps."""
        return self.numbers[-1] + 1


@dataclass(frozen=True, slots=True)
class Sample:
    """A finished rollout with its verdict."""

    rollout: Rollout
    text: str  # decoded response without end tokens; in a conversation the policy's last turn
    score: Score
    reward: float  # used in training: the score's value plus shaping
    # Scores of its tokens when the batch entered training, in nats, by column of the token table:
    # `proximal_logp` and `entry_*` under the weights at that time, `reference_logp` under the first weights.
    scores: Mapping[str, array[float]] = field(default_factory=dict)
    steps: Steps | None = None  # None: all of its tokens have the advantage of the response
    is_trained: bool = True  # False: it counts only in its group's baseline

    @property
    def branches(self) -> tuple[Sample, ...]:
        """A sample for each branch of its conversation, with its part of the scores and steps."""
        samples, end = list[Sample](), 0
        for rollout in (branches := self.rollout.branches):
            first, end = end, end + rollout.length
            scores = {name: values[first:end] for name, values in self.scores.items()}
            steps = self.steps and Steps(self.steps.numbers[first:end], self.steps.advantages[first:end])
            samples.append(replace(self, rollout=rollout, scores=scores, steps=steps))
        return (self,) if len(branches) == 1 else tuple(samples)


@dataclass(frozen=True, slots=True)
class Group:
    """All samples of one problem; advantages are relative to the group."""

    problem: Problem
    samples: tuple[Sample, ...]
    advantages: tuple[float, ...] = ()
    epoch: int = 0  # of the problem stream, see `WorkItem`
    # Trainer version when the last sample finished; divides a token's age into time in generation and time in
    # the queue.
    ready_version: int = 0
    weight: float = 1.0  # of its tokens in the loss, relative to other groups
    hint: float = 0.0  # share of the solution that its prompt shows

    @property
    def item(self) -> WorkItem:
        """The work item that the group answers."""
        return WorkItem(self.problem, self.epoch)

    @property
    def rewards(self) -> tuple[float, ...]:
        """Reward of each sample."""
        return tuple(sample.reward for sample in self.samples)

    @property
    def reward_parts(self) -> tuple[tuple[float, ...], ...]:
        """Single rewards of each sample and the addition of shaping; empty if a score is one reward."""
        if not all(sample.score.parts for sample in self.samples):
            return ()
        return tuple((*each.score.parts, each.reward - each.score.value) for each in self.samples)

    @property
    def is_uniform(self) -> bool:
        """True if all scores are equal, so that advantages relative to the group carry no signal."""
        return len({sample.score.value for sample in self.samples}) <= 1

    @property
    def num_tokens(self) -> int:
        """Number of response tokens of all samples."""
        return sum(sample.rollout.length for sample in self.samples)

    @property
    def branched(self) -> Group:
        """The group with a sample for each branch of its conversations, with its conversation's reward."""
        rows = [sample.branches for sample in self.samples]
        if sum(map(len, rows)) == len(rows):
            return self
        advantages = (
            value for value, row in zip(self.advantages, rows, strict=bool(self.advantages)) for _ in row
        )
        return replace(
            self, samples=tuple(each for row in rows for each in row), advantages=tuple(advantages)
        )

    @property
    def oldest_version(self) -> int:
        """Policy version of the oldest token that may be trained on."""
        return min(self._versions)

    @property
    def newest_version(self) -> int:
        """Policy version of the newest token that may be trained on."""
        return max(self._versions)

    @property
    def trained_samples(self) -> tuple[Sample, ...]:
        """The samples that are trained on; if none is the policy's, all of them, without advantages."""
        if not are_trained(self.samples):
            return self.samples
        return tuple(sample for sample in self.samples if sample.is_trained)

    @property
    def _versions(self) -> list[int]:
        samples = self.trained_samples
        return [segment.version for sample in samples for segment in sample.rollout.aging_segments]


def are_trained(samples: Iterable[Sample]) -> bool:
    """Returns whether any sample of a policy version is trained on."""
    return any(sample.is_trained and sample.rollout.aging_segments for sample in samples)
