"""Samples as a model's input: their tokens in a layout, and the cells that predict the response tokens.

Shapes: as in `batch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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
)
from bapo_lightning.data.batches.places import Spans, contexts_and_gaps
from bapo_lightning.data.batches.transfer import on_device
from bapo_lightning.types import Rollout


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
    return laid_out(input_ids, range(len(rollouts)), layout, spans)[0]


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
