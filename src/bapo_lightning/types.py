"""The nouns of the system: what flows from a problem to a training batch. Frozen, picklable, no torch.

    Problem -> WorkItem -> (engine) -> Rollout of Segments -> (reward) -> Sample -> Group -> (batch) ->
    TrainBatch

Token ids and log-probs are `array.array` buffers (int32, float32): eight bytes a token instead of some
seventy as tuples.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class FinishReason(StrEnum):
    """Why a rollout ended."""

    STOP = "stop"  # the policy wrote an end token (kept as the last token)
    LENGTH = "length"  # the token limit was reached


class ScoreStatus(StrEnum):
    """What the verifier could say about an answer."""

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
    # What the data set's own scorer needs. Apart from comparison, so that a problem stays hashable.
    metadata: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One use of a problem: an epoch of the problem stream holds every problem once, so that epoch and
    problem id are unique in a run.
    """

    problem: Problem
    epoch: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens sampled under one policy version."""

    token_ids: array[int]  # typecode "i"
    logprobs: array[float]  # typecode "f": nats, under the distribution each token was really sampled from
    version: int  # optimizer updates in the weights that sampled it

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.logprobs):
            raise ValueError(
                f"a segment needs one log-prob per token, got {len(self.token_ids)} tokens and "
                f"{len(self.logprobs)} log-probs"
            )


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sampled response; several segments when it was stopped and resumed under newer weights."""

    prompt_ids: array[int]
    segments: tuple[Segment, ...]
    finish: FinishReason

    @property
    def response_ids(self) -> array[int]:
        """All sampled tokens in order."""
        return _joined("i", [segment.token_ids for segment in self.segments])

    @property
    def logprobs(self) -> array[float]:
        """Behaviour log-probs of `response_ids`, in nats."""
        return _joined("f", [segment.logprobs for segment in self.segments])

    @property
    def versions(self) -> array[int]:
        """Policy version of each token of `response_ids`."""
        return _joined(
            "i", [array("i", [segment.version]) * len(segment.token_ids) for segment in self.segments]
        )

    @property
    def length(self) -> int:
        """Number of sampled tokens."""
        return sum(len(segment.token_ids) for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Completion:
    """What a reward sees of a rollout."""

    text: str  # decoded response without special tokens
    num_tokens: int
    finish: FinishReason


@dataclass(frozen=True, slots=True)
class Score:
    """Verdict on one answer. `value` is 1.0 for correct and 0.0 otherwise unless the reward says
    differently.
    """

    value: float
    status: ScoreStatus
    # final answer as the verifier read it, equal answers as equal strings: its vote in maj@k. Empty: none
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """A rollout with its verdict. `reward` is what training sees: the score's value plus shaping."""

    rollout: Rollout
    completion: Completion
    score: Score
    reward: float
    proximal_logprobs: array[float] | None = (
        None  # nats, by the trainer's weights when the batch entered training; None: not recomputed
    )


@dataclass(frozen=True, slots=True)
class Group:
    """All samples of one problem; advantages are relative to the group."""

    problem: Problem
    samples: tuple[Sample, ...]
    advantages: tuple[float, ...] = field(default=())
    epoch: int = 0  # of the problem stream, see `WorkItem`
    # the trainer's policy version when the last sample was finished: what is older then aged while being
    # generated
    ready_version: int = 0

    @property
    def rewards(self) -> tuple[float, ...]:
        """Reward of each sample."""
        return tuple(sample.reward for sample in self.samples)

    @property
    def is_uniform(self) -> bool:
        """True when every score is equal, so that a group-relative advantage carries no signal."""
        return len({sample.score.value for sample in self.samples}) <= 1

    @property
    def num_tokens(self) -> int:
        """Response tokens of all samples."""
        return sum(sample.rollout.length for sample in self.samples)

    @property
    def oldest_version(self) -> int:
        """Policy version of the oldest token."""
        return min(sample.rollout.segments[0].version for sample in self.samples)

    @property
    def newest_version(self) -> int:
        """Policy version of the newest token."""
        return max(sample.rollout.segments[-1].version for sample in self.samples)


def _joined(typecode: str, parts: list[array[Any]]) -> array[Any]:
    joined: array[Any] = array(typecode)
    for part in parts:
        joined.extend(part)
    return joined
