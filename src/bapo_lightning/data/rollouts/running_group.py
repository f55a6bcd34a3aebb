"""Groups in progress, whose samples may be stopped and resumed under newer weights, and passes over them."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bapo_lightning.rollout.engine import GenerationRequest
from bapo_lightning.types import Rollout, WorkItem

STEPS = 8  # smallest number of decoding steps in a call of a stream


@dataclass(slots=True)
class RunningGroup:
    """All samples of one work item. The group waits for its last sample."""

    item: WorkItem
    rollouts: list[Rollout]
    hint: float = 0.0  # share of the solution that the prompt shows
    _oldest: int | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def prompt_ids(self) -> array[int]:
        """Token ids of the prompt that all samples share."""
        return self.rollouts[0].prompt_ids

    @property
    def is_finished(self) -> bool:
        """Whether every sample has ended."""
        return all(rollout.finish is not None for rollout in self.rollouts)

    def unfinished(self) -> list[int]:
        """Returns the numbers of the samples that have not ended."""
        return [index for index, rollout in enumerate(self.rollouts) if rollout.finish is None]

    @property
    def num_tokens(self) -> int:
        """Tokens sampled so far, over all samples."""
        return sum(rollout.length for rollout in self.rollouts)

    @property
    def oldest_version(self) -> int | None:
        """Policy version of the oldest token; None before the first. Later tokens are never older."""
        if self._oldest is None:
            versions = (seg.version for rollout in self.rollouts for seg in rollout.aging_segments)
            self._oldest = min(versions, default=None)
        return self._oldest

    def cut_at_segments(self, max_segments: int, version: int) -> None:
        """Ends the samples that could only continue with one policy version more than `max_segments`."""
        for index, rollout in enumerate(self.rollouts):
            if (
                rollout.finish is None
                and rollout.num_versions >= max_segments
                and rollout.sampled_segments[-1].version != version
            ):
                self.rollouts[index] = rollout.cut()


@dataclass(frozen=True)
class SampledPass:
    """The requests of a pass, and their results."""

    requests: Sequence[GenerationRequest]
    continued: Mapping[int, Rollout]  # rollouts after it, by number of the request; a lost engine leaves gaps
    seconds: float
    rounds: Sequence[Sequence[int]] = ()  # `Rounds.taken`
    # Decoding steps of a call of a stream, which continues responses and resumes none; 0: a pass.
    steps: int = 0

    @property
    def is_lost(self) -> bool:
        """Whether the engine died during the pass."""
        return len(self.continued) < len(self.requests)


def place(group: int, index: int) -> GenerationRequest:
    """Returns a request of a pass that holds only the place of the sample it continues."""
    return GenerationRequest(array("i"), 0, 0, group, index)
