"""Rollouts on their way: a group whose samples may have been stopped at a token budget, to be resumed under
newer weights.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace

from bapo_lightning.rollout.engine import Generation
from bapo_lightning.types import FinishReason, Rollout, Segment, WorkItem


@dataclass(frozen=True, slots=True)
class UnfinishedRollout:
    """A response so far. Every segment keeps the version and the log-probs of the policy that sampled it."""

    segments: tuple[Segment, ...] = ()
    finish: FinishReason | None = None  # None: to be resumed

    @property
    def length(self) -> int:
        """Tokens sampled so far."""
        return sum(len(segment.token_ids) for segment in self.segments)

    def extended(self, generation: Generation, max_new_tokens: int) -> UnfinishedRollout:
        """With what another pass sampled. Tokens of the same version join the last segment."""
        new = generation.segment
        if self.segments and self.segments[-1].version == new.version:
            last = self.segments[-1]
            joined = Segment(last.token_ids + new.token_ids, last.logprobs + new.logprobs, new.version)
            segments = (*self.segments[:-1], joined)
        else:
            segments = (*self.segments, new)
        longer = UnfinishedRollout(segments)
        if generation.finish is FinishReason.STOP or longer.length >= max_new_tokens:
            return replace(longer, finish=generation.finish)
        return longer


@dataclass(slots=True)
class UnfinishedGroup:
    """All samples of one draw; the group waits for its last member."""

    draw: WorkItem
    prompt_ids: array[int]
    rollouts: list[UnfinishedRollout]

    @property
    def is_finished(self) -> bool:
        """Whether every sample has ended."""
        return all(rollout.finish is not None for rollout in self.rollouts)

    @property
    def num_tokens(self) -> int:
        """Tokens sampled so far, over all samples."""
        return sum(rollout.length for rollout in self.rollouts)

    @property
    def oldest_version(self) -> int | None:
        """Policy version of the oldest token; None before the first."""
        return min(
            (rollout.segments[0].version for rollout in self.rollouts if rollout.segments), default=None
        )

    def cut_at_segments(self, max_segments: int, version: int) -> None:
        """End the samples that could only go on with one policy version more than `max_segments`."""
        for index, rollout in enumerate(self.rollouts):
            if (
                rollout.finish is None
                and len(rollout.segments) >= max_segments
                and rollout.segments[-1].version != version
            ):
                self.rollouts[index] = replace(rollout, finish=FinishReason.LENGTH)

    def finished_rollouts(self) -> list[Rollout]:
        """The samples. Raises ValueError while one of them has not ended."""
        finished = []
        for rollout in self.rollouts:
            if rollout.finish is None:
                raise ValueError(f"a sample of problem {self.draw.problem.id!r} has not ended")
            finished.append(Rollout(self.prompt_ids, rollout.segments, rollout.finish))
        return finished
