"""Samples as a model's input: their tokens in a layout, and the cells that predict the response tokens.

Shapes: as in `batch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import add

import numpy as np
import torch
from torch import Tensor

from bapo_lightning.data.batches.layout import (
    Layout,
    PromptCells,
    SharedRow,
    arranged,
    padded_ids,
    prompt_numbers,
    ramps,
)
from bapo_lightning.types import NO_CANDIDATE, Rollout


def on_device(values: np.ndarray | Tensor, device: torch.device | str) -> Tensor:
    """Returns a copy on the device, or the tensor itself if it is there. To CUDA the copy runs from pinned
    memory during the host's next work; kernels that use it wait for it.
    """
    tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    if tensor.device.type == "cpu" and torch.device(device).type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


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
    """Returns for each rollout, of which the first `skipped` sampled tokens are not trained on, the number of
    tokens before its first trained one, and for each of its trained tokens the feedback tokens that lie
    between; no gaps where no environment answered any of them.
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
    """Columns of each sample's trained tokens."""
    if not gaps:
        return [slice(start, start + count) for start, count in zip(contexts, responses, strict=True)]
    return [start + np.arange(len(gap)) + gap for start, gap in zip(contexts, gaps, strict=True)]


def _feedback_before(rollout: Rollout) -> np.ndarray:
    """Number of feedback tokens before each sampled token, and that of all."""
    lengths = np.array([len(segment.token_ids) for segment in rollout.segments])
    is_feedback = np.array([segment.is_feedback for segment in rollout.segments], np.bool_)
    before = np.where(is_feedback, lengths, 0).cumsum()
    return np.append(np.repeat(before, np.where(is_feedback, 0, lengths)), before[-1])


@dataclass(frozen=True)
class ModelInput:
    """Samples that pass through the model together. Response tokens are flat; `index` finds their cells."""

    input_ids: Tensor  # [B, T]
    index: Tensor  # [N] flat position b * T + t whose hidden state predicts each response token
    targets: Tensor  # [N] the response tokens
    prompts: PromptCells
    # Tokens of each sample in a packed row; empty in other layouts.
    packed_lengths: tuple[int, ...] = field(default=(), kw_only=True)
    shared: SharedRow | None = field(default=None, kw_only=True)  # of a row in which prompts stand once
    candidates: Tensor | None = field(default=None, kw_only=True)  # [N, K] token ids, see `candidate_rows`


def model_input(
    rollouts: Sequence[Rollout], device: torch.device, layout: Layout = Layout.PADDED
) -> ModelInput:
    """Makes the input of a policy that scores the response tokens of `rollouts`, in their order."""
    prompts = np.array([len(rollout.prompt_ids) for rollout in rollouts])
    responses = np.array([rollout.length for rollout in rollouts])
    input_ids = on_device(padded_ids(rollouts), device)
    numbers = np.array(prompt_numbers(rollouts))
    _, gaps = contexts_and_gaps(rollouts, [0] * len(rollouts))
    spans = Spans(numbers, prompts, prompts, responses, gaps)
    inputs, _ = laid_out(input_ids, range(len(rollouts)), layout, spans)
    own = candidate_rows(rollouts)
    if own is None:
        return inputs
    return replace(inputs, candidates=on_device(np.concatenate([ids for ids, _ in own]), device))


def candidate_rows(rollouts: Sequence[Rollout]) -> list[tuple[np.ndarray, np.ndarray]] | None:
    """Returns for each rollout of T tokens their candidates, [T, K] token ids, and the log-probs of these,
    [T, K] nats, with which they were sampled: -1 and `NO_CANDIDATE` in place of one that there is not. None
    if nothing was noted of any.
    """
    noted = [rollout.candidates for rollout in rollouts]
    width = max((max(own.counts, default=0) for own in noted if own is not None), default=0)
    if not width:
        return None
    rows = []
    for rollout, own in zip(rollouts, noted, strict=True):
        ids = np.full((rollout.length, width), -1, np.int64)
        logprobs = np.full(ids.shape, NO_CANDIDATE, np.float32)
        if own is not None:
            there = np.arange(width) < np.array(own.counts)[:, None]
            ids[there], logprobs[there] = own.token_ids, own.logprobs
        rows.append((ids, logprobs))
    return rows


def laid_out(
    input_ids: Tensor, rows: Sequence[int], layout: Layout, spans: Spans
) -> tuple[ModelInput, Tensor]:
    """Returns some rows of `input_ids`, [B, T], as a model's input, and the flat position in `input_ids` of
    each response token, [N].
    """
    grid = arranged(layout, spans.prompts, spans.prompt_lengths, spans.lengths)
    samples, columns = np.repeat(np.arange(len(rows)), spans.responses), spans.columns
    device, starts = input_ids.device, np.array(rows) * input_ids.shape[1]
    source = on_device(starts[samples] + columns, device)
    inputs = ModelInput(
        input_ids.view(-1)[on_device(starts[grid.samples] + grid.columns, device)],
        on_device(grid.cell(samples, columns - 1), device),
        input_ids.view(-1)[source],
        PromptCells(grid, spans.prompt_lengths, spans.responses),
        packed_lengths=grid.packed_lengths,
        shared=grid.shared,
    )
    return inputs, source
