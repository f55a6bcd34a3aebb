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
    gaps: Sequence[np.ndarray] = ()  # see `contexts_and_gaps`

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


def contexts_and_gaps(
    rollouts: Sequence[Rollout], skipped: Sequence[int]
) -> tuple[tuple[int, ...], tuple[np.ndarray, ...]]:
    """Returns for each rollout the number of tokens before its first trained one, and for each of its trained
    tokens the feedback tokens that lie between; no gaps where no environment answered any of them.

    Args:
        rollouts: finished rollouts.
        skipped: sampled tokens of each that are not trained on, the first ones.
    """
    counts = map(add, (len(rollout.prompt_ids) for rollout in rollouts), skipped)
    if not any(rollout.replies for rollout in rollouts):
        return tuple(counts), ()
    before = [_feedback_before(rollout) for rollout in rollouts]
    firsts = [int(own[skip]) for own, skip in zip(before, skipped, strict=True)]
    gaps = (own[skip:-1] - first for own, skip, first in zip(before, skipped, firsts, strict=True))
    return tuple(map(add, counts, firsts)), tuple(gaps)


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
