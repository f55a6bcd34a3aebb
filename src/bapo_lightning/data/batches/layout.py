"""Layout of the samples in a micro-batch: the arithmetic of cells.

    PADDED   a row for each sample, filled up to the longest
    PACKED   one row, sample after sample
    SHARED   one row; a prompt, then all responses to it without their last tokens, which predict nothing

A sample's columns count its own tokens: the prompt's, then the response's. Arrays live on the host; those of
a class are [B], one number for each sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np

from bapo_lightning.types import Rollout

LENGTH_RATIO = 2  # of the samples whose attention is computed together: at most half of a grid is padding


class Layout(StrEnum):
    """Arrangement of samples, see the module."""

    PADDED = "padded"
    PACKED = "packed"
    SHARED = "shared"


@dataclass(frozen=True)
class SharedRow:
    """Positions of each sample's two pieces in a shared row."""

    prompt_start: np.ndarray
    prompt_length: np.ndarray
    response_start: np.ndarray
    response_length: np.ndarray  # without the last token
    first: np.ndarray  # whether the sample is the first with its prompt, and so owns the prompt's cells

    def cell(self, sample: np.ndarray, column: np.ndarray) -> np.ndarray:
        """Cells in the row of a sample's columns; both arrays have any shape."""
        beyond = column - self.prompt_length[sample]
        return np.where(beyond < 0, self.prompt_start[sample] + column, self.response_start[sample] + beyond)

    @cached_property
    def owned(self) -> tuple[np.ndarray, np.ndarray]:
        """(sample, column) of each cell in the row."""
        lengths = np.where(self.first, self.prompt_length, 0) + self.response_length
        sample = np.repeat(np.arange(len(lengths)), lengths)
        return sample, ramps(lengths) + np.where(self.first, 0, self.prompt_length)[sample]

    def grids(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Samples of similar length side by side, longest first: for each grid its samples [R] and the
        row's cell of each of its cells [R, L]. Cells behind a sample's end repeat its last token.
        """
        lengths = self.prompt_length + self.response_length
        order = np.argsort(-lengths, kind="stable")
        found = []
        while len(order):
            longest = lengths[order[0]]
            together = int(np.searchsorted(-lengths[order], -longest / LENGTH_RATIO, side="right"))
            samples, order = order[:together], order[together:]
            columns = np.minimum(np.arange(longest), lengths[samples, None] - 1)
            found.append((samples, self.cell(samples[:, None], columns)))
        return found


@dataclass(frozen=True)
class Arrangement:
    """Cells of a micro-batch, and the positions of samples in them."""

    samples: np.ndarray  # [B, 1] or [1, T]: the sample of each cell
    columns: np.ndarray  # [B, T] or [1, T]: the column of the sample that stands there
    cell: Callable[[np.ndarray, np.ndarray], np.ndarray]  # (sample, column) -> flat number of the cell
    packed_lengths: tuple[int, ...] = ()  # tokens of each sample in a packed row
    shared: SharedRow | None = None


@dataclass(frozen=True)
class PromptCells:
    """Cells of the samples' prompts, worked out on demand."""

    arrangement: Arrangement
    prompt_lengths: np.ndarray
    response_lengths: np.ndarray  # response tokens that the samples have in the micro-batch

    def cells(self) -> np.ndarray:
        """Flat number of the cell of each prompt token, sample after sample."""
        samples = np.repeat(np.arange(len(self.prompt_lengths)), self.prompt_lengths)
        return self.arrangement.cell(samples, ramps(self.prompt_lengths))


def arranged(
    layout: Layout, prompts: np.ndarray, prompt_lengths: np.ndarray, lengths: np.ndarray
) -> Arrangement:
    """Arranges B samples, in their order, by number of their prompt (equal where prompts are), its tokens (at
    least 1), and the tokens of prompt and what follows it (at least one more).
    """
    if layout is Layout.SHARED:
        _, owner, number = np.unique(prompts, return_index=True, return_inverse=True)
        response = lengths - prompt_lengths - 1
        first = np.zeros(len(response), np.bool_)
        first[owner] = True
        lead = np.where(first, prompt_lengths, 0)
        start = (lead + response).cumsum() - lead - response
        row = SharedRow(start[owner][number], prompt_lengths, start + lead, response, first)
        samples, columns = row.owned
        return Arrangement(samples[None], columns[None], row.cell, shared=row)
    if layout is Layout.PACKED:
        starts, samples = lengths.cumsum() - lengths, np.repeat(np.arange(len(lengths)), lengths)
        own = tuple(lengths.tolist())
        return Arrangement(samples[None], ramps(lengths)[None], lambda s, column: starts[s] + column, own)
    samples, width = np.arange(len(lengths)), int(lengths.max())
    return Arrangement(samples[:, None], np.arange(width)[None], lambda s, column: s * width + column)


def prompt_numbers(rollouts: Sequence[Rollout]) -> tuple[int, ...]:
    """A number for each rollout, equal where prompts are."""
    known: dict[bytes, int] = {}
    return tuple(known.setdefault(rollout.prompt_ids.tobytes(), len(known)) for rollout in rollouts)


def padded_ids(rollouts: Sequence[Rollout]) -> np.ndarray:
    """Token ids, [B, T] int64: each prompt directly followed by its response, zeros on the right."""
    rows = [rollout.token_ids for rollout in rollouts]
    input_ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for row, token_ids in enumerate(rows):
        input_ids[row, : len(token_ids)] = token_ids
    return input_ids


def ramps(lengths: np.ndarray) -> np.ndarray:
    """0 .. length-1 of each length, one after another."""
    return np.arange(lengths.sum()) - np.repeat(lengths.cumsum() - lengths, lengths)
