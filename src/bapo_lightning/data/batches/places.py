"""Places of the trained tokens among a sample's tokens, between which an environment's feedback may lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import add

import numpy as np

from bapo_lightning.data.batches.layout import ramps
from bapo_lightning.types import Rollout

Place = slice | np.ndarray  # columns of a sample's trained tokens


@dataclass(frozen=True)
class Spans:
    """Where the tokens of some samples lie: arrays of one number for each."""

    prompts: np.ndarray  # number of the prompt, equal where prompts are
    prompt_lengths: np.ndarray
    contexts: np.ndarray  # tokens before the first trained one
    responses: np.ndarray  # trained tokens
    gaps: Sequence[np.ndarray] = ()  # see `gaps_of`

    @property
    def lengths(self) -> np.ndarray:
        """Tokens up to the last trained one."""
        lengths = self.contexts + self.responses
        return lengths + last_gaps(self.gaps) if self.gaps else lengths

    @property
    def columns(self) -> np.ndarray:
        """Columns of the trained tokens, sample after sample."""
        columns = np.repeat(self.contexts, self.responses) + ramps(self.responses)
        return columns + np.concatenate(self.gaps) if self.gaps else columns


def last_gaps(gaps: Sequence[np.ndarray]) -> list[int]:
    """Returns the feedback tokens between the first and the last trained token of each sample."""
    return [int(gap[-1]) if len(gap) else 0 for gap in gaps]


def gaps_of(rollouts: Sequence[Rollout], skipped: Sequence[int]) -> tuple[np.ndarray, ...]:
    """Returns for each rollout the feedback tokens before each of its trained tokens, counted from the first
    trained one on; nothing where no environment answered any of them.

    Args:
        rollouts: finished.
        skipped: sampled tokens of each that are not trained on, the first ones.
    """
    if not any(rollout.replies for rollout in rollouts):
        return ()
    return tuple(
        (before := _feedback_before(rollout))[skip:-1] - before[skip]
        for rollout, skip in zip(rollouts, skipped, strict=True)
    )


def contexts_of(rollouts: Sequence[Rollout], skipped: Sequence[int]) -> tuple[int, ...]:
    """Returns the number of tokens before the first trained one of each rollout."""
    counts = map(add, (len(rollout.prompt_ids) for rollout in rollouts), skipped)
    return tuple(
        count + (int(_feedback_before(rollout)[skip]) if rollout.replies else 0)
        for count, rollout, skip in zip(counts, rollouts, skipped, strict=True)
    )


def places_of(
    contexts: Sequence[int], responses: Sequence[int], gaps: Sequence[np.ndarray]
) -> Sequence[Place]:
    """Returns the columns of each sample's trained tokens."""
    if not gaps:
        return [slice(start, start + count) for start, count in zip(contexts, responses, strict=True)]
    return [start + np.arange(len(gap)) + gap for start, gap in zip(contexts, gaps, strict=True)]


def _feedback_before(rollout: Rollout) -> np.ndarray:
    """Number of feedback tokens before each sampled token, and that of all."""
    lengths = np.array([len(segment.token_ids) for segment in rollout.segments])
    is_feedback = np.array([segment.is_feedback for segment in rollout.segments], np.bool_)
    before = np.where(is_feedback, lengths, 0).cumsum()
    return np.append(np.repeat(before, np.where(is_feedback, 0, lengths)), before[-1])
