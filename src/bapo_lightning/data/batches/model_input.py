"""Arranges samples as a model's input: which samples pass together, their cells, and the tensors.

    PADDED   a row for each sample, filled up to the longest
    PACKED   one row, sample after sample
    SHARED   one row; a prompt, then all responses to it without their last tokens, which predict nothing

A sample's columns count its own tokens: the prompt's, then the response's. Arrays live on the host; arrays in
a class are [B], one number for each sample. Shapes of tensors: as in `batch`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from math import ceil
from operator import add

import numpy as np
import torch
from torch import Tensor

from bapo_lightning.types import NO_CANDIDATE, Rollout

LENGTH_RATIO = 2  # largest, of samples whose attention is computed together: at most half a grid is padding


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
    first: np.ndarray  # True for the first sample with a prompt, which owns the prompt's cells

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
        """Returns grids of samples of similar length, longest first: for each grid its samples [R] and the
        cell in the row of each grid cell [R, L]. Cells behind a sample's end repeat its last token.
        """
        lengths = self.prompt_length + self.response_length
        order = np.argsort(-lengths, kind="stable")
        pairs = []
        while len(order):
            longest = lengths[order[0]]
            together = int(np.searchsorted(-lengths[order], -longest / LENGTH_RATIO, side="right"))
            samples, order = order[:together], order[together:]
            columns = np.minimum(np.arange(longest), lengths[samples, None] - 1)
            pairs.append((samples, self.cell(samples[:, None], columns)))
        return pairs


@dataclass(frozen=True)
class Arrangement:
    """Cells of a micro-batch, and the positions of samples in them."""

    samples: np.ndarray  # [B, 1] or [1, T]: sample of each cell
    columns: np.ndarray  # [B, T] or [1, T]: column of that sample in each cell
    cell: Callable[[np.ndarray, np.ndarray], np.ndarray]  # (sample, column) -> flat number of the cell
    packed_lengths: tuple[int, ...] = ()  # tokens of each sample in a packed row
    shared: SharedRow | None = None


@dataclass(frozen=True)
class PromptCells:
    """Cells of the samples' prompts, computed on demand."""

    arrangement: Arrangement
    prompt_lengths: np.ndarray
    response_lengths: np.ndarray  # number of response tokens of each sample in the micro-batch

    def cells(self) -> np.ndarray:
        """Returns the flat number of the cell of each prompt token, sample after sample."""
        samples = np.repeat(np.arange(len(self.prompt_lengths)), self.prompt_lengths)
        return self.arrangement.cell(samples, ramps(self.prompt_lengths))


def arranged(
    layout: Layout, prompts: np.ndarray, prompt_lengths: np.ndarray, lengths: np.ndarray
) -> Arrangement:
    """Arranges B samples in their order. Given are the number of each sample's prompt (equal for equal
    prompts), its length (at least 1), and the length of prompt and response (at least one more).
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
        sizes = tuple(lengths.tolist())
        return Arrangement(samples[None], ramps(lengths)[None], lambda s, column: starts[s] + column, sizes)
    samples, width = np.arange(len(lengths)), int(lengths.max())
    return Arrangement(samples[:, None], np.arange(width)[None], lambda s, column: s * width + column)


def prompt_numbers(rollouts: Sequence[Rollout]) -> tuple[int, ...]:
    """Returns a number for each rollout, equal for equal prompts."""
    known: dict[bytes, int] = {}
    return tuple(known.setdefault(rollout.prompt_ids.tobytes(), len(known)) for rollout in rollouts)


def padded_ids(rollouts: Sequence[Rollout]) -> np.ndarray:
    """Returns token ids, [B, T] int64: each prompt directly followed by its response, zeros on the right."""
    rows = [rollout.token_ids for rollout in rollouts]
    input_ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for row, token_ids in enumerate(rows):
        input_ids[row, : len(token_ids)] = token_ids
    return input_ids


def ramps(lengths: np.ndarray) -> np.ndarray:
    """Returns 0 .. length-1 for each length, one after another."""
    return np.arange(lengths.sum()) - np.repeat(lengths.cumsum() - lengths, lengths)


def balanced_parts(costs: Sequence[int], num_parts: int) -> list[list[int]]:
    """Splits items of non-negative costs into K parts of nearly equal total cost, by Karmarkar and Karp's
    largest differencing method. Raises ValueError for K < 1.

    Returns K lists of item numbers, each ascending, the costliest part first, some empty if there are fewer
    items. The same costs always give the same parts.
    """
    if num_parts < 1:
        raise ValueError(f"num_parts must be at least 1, got {num_parts}")
    # An entry is a partial solution, its parts by descending cost. The two entries with the largest spread
    # are merged, largest part with smallest.
    nothing: list[tuple[int, list[int]]] = [(0, [])] * (num_parts - 1)
    heap = [(-cost, item, [(cost, [item]), *nothing]) for item, cost in enumerate(costs)]
    heapq.heapify(heap)
    while len(heap) > 1:
        _, order, first = heapq.heappop(heap)
        _, _, second = heapq.heappop(heap)
        merged = [
            (cost + other, items + others)
            for (cost, items), (other, others) in zip(first, reversed(second), strict=True)
        ]
        merged.sort(key=lambda part: (-part[0], part[1]))
        heapq.heappush(heap, (merged[-1][0] - merged[0][0], order, merged))
    return [sorted(items) for _, items in heap[0][2]] if heap else [[] for _ in range(num_parts)]


def rows_by_token_budget(
    lengths: Sequence[int],
    token_budget: int,
    layout: Layout = Layout.PADDED,
    prompts: Sequence[int] = (),
    mixed: bool = False,
) -> list[list[int]]:
    """Partitions rows into parts of about equal size within a token budget. A row beyond it is a part alone.

    Padding counts if there is any: rows times longest row. A shared prompt counts once for each row, as it
    does in attention. Without padding rows of any lengths may be together; otherwise rows of similar length
    are, unless `mixed` is set, for more padding. Rows that share a prompt, by its number, are together as far
    as possible.

    Returns the row numbers of each part. Padded and not mixed: the longest rows first, throughout. Otherwise
    the largest part first, its rows in ascending order.
    """
    if layout is Layout.SHARED:
        families = _families(lengths, token_budget, prompts)
        parts = _packed_parts([sum(lengths[row] for row in family) for family in families], token_budget)
        return [sorted(row for family in part for row in families[family]) for part in parts]
    if layout is Layout.PACKED:
        return _packed_parts(lengths, token_budget)
    if mixed:
        return _packed_parts(lengths, token_budget, size=lambda part: len(part) * max(part, default=0))
    # Full parts leave a small rest. The smallest budget that gives no more parts spreads the rest over all.
    most = len(_padded_parts(lengths, token_budget))
    enough, too_few = token_budget, 0
    while most > 1 and enough - too_few > 1:
        middle = (enough + too_few) // 2
        if len(_padded_parts(lengths, middle)) > most:
            too_few = middle
        else:
            enough = middle
    return _padded_parts(lengths, enough)


def _padded_parts(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Fills parts with rows, longest first: the fewest parts that neighbours in this order can make."""
    parts: list[list[int]] = []
    longest = 0
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if not parts or (len(parts[-1]) + 1) * longest > token_budget:
            parts.append([])
            longest = lengths[row]
        parts[-1].append(row)
    return parts


def _families(lengths: Sequence[int], token_budget: int, prompts: Sequence[int]) -> list[list[int]]:
    """Returns families of rows with the same prompt, as many rows in each as the budget allows."""
    families: list[list[int]] = []
    filling: dict[
        int, tuple[list[int], int]
    ] = {}  # prompt -> its family that is not full, and the room in it
    for row, prompt in enumerate(prompts):
        family, room = filling.get(prompt, ([], 0))
        if lengths[row] > room:
            family, room = [], token_budget
            families.append(family)
        family.append(row)
        filling[prompt] = family, room - lengths[row]
    return families


def _packed_parts(
    lengths: Sequence[int], token_budget: int, size: Callable[[Sequence[int]], int] = sum
) -> list[list[int]]:
    """Returns the fewest balanced parts within the budget; rows beyond it are separated first."""
    alone = [[row] for row, length in enumerate(lengths) if length >= token_budget]
    rows = [row for row, length in enumerate(lengths) if length < token_budget]
    costs = [lengths[row] for row in rows]
    num_parts = ceil(sum(costs) / token_budget)
    while rows:
        parts = [[rows[item] for item in part] for part in balanced_parts(costs, num_parts)]
        if all(size([lengths[row] for row in part]) <= token_budget for part in parts):
            return alone + parts
        num_parts += 1
    return alone


def on_device(values: np.ndarray | Tensor, device: torch.device | str) -> Tensor:
    """Returns a copy on the device, or the tensor itself if it is there. A copy to CUDA runs from pinned
    memory while the host continues; kernels that use it wait for it.
    """
    tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    if tensor.device.type == "cpu" and torch.device(device).type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


Place = slice | np.ndarray  # columns of a sample's trained tokens


@dataclass(frozen=True)
class Spans:
    """Positions of the tokens of some samples, as arrays with one number for each sample."""

    prompts: np.ndarray  # number of the prompt, equal for equal prompts
    prompt_lengths: np.ndarray
    contexts: np.ndarray  # tokens before the first trained one
    responses: np.ndarray  # trained tokens
    gaps: Sequence[np.ndarray] = ()  # see `contexts_and_gaps`

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens up to the last trained token."""
        lengths = self.contexts + self.responses
        return lengths + last_gaps(self.gaps) if self.gaps else lengths

    @property
    def columns(self) -> np.ndarray:
        """Columns of the trained tokens, sample after sample."""
        columns = np.repeat(self.contexts, self.responses) + ramps(self.responses)
        return columns + np.concatenate(self.gaps) if self.gaps else columns


def last_gaps(gaps: Sequence[np.ndarray]) -> list[int]:
    """Returns the number of feedback tokens between the first and the last trained token of each sample."""
    return [int(gap[-1]) if len(gap) else 0 for gap in gaps]


def contexts_and_gaps(
    rollouts: Sequence[Rollout], skipped: Sequence[int]
) -> tuple[tuple[int, ...], tuple[np.ndarray, ...]]:
    """Returns for each rollout, whose first `skipped` sampled tokens are not trained on, the number of tokens
    before its first trained token, and for each trained token the number of feedback tokens in between; no
    gaps if no environment answered any rollout.
    """
    counts = map(add, (len(rollout.prompt_ids) for rollout in rollouts), skipped)
    if not any(rollout.replies for rollout in rollouts):
        return tuple(counts), ()
    before = [_feedback_before(rollout) for rollout in rollouts]
    firsts = [int(places[skip]) for places, skip in zip(before, skipped, strict=True)]
    gaps = (places[skip:-1] - first for places, skip, first in zip(before, skipped, firsts, strict=True))
    return tuple(map(add, counts, firsts)), tuple(gaps)


def places_of(
    contexts: Sequence[int], responses: Sequence[int], gaps: Sequence[np.ndarray]
) -> Sequence[Place]:
    """Returns the columns of each sample's trained tokens."""
    if not gaps:
        return [slice(start, start + count) for start, count in zip(contexts, responses, strict=True)]
    return [start + np.arange(len(gap)) + gap for start, gap in zip(contexts, gaps, strict=True)]


def _feedback_before(rollout: Rollout) -> np.ndarray:
    """Returns the number of feedback tokens before each sampled token, and their total."""
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
    shared: SharedRow | None = field(default=None, kw_only=True)  # of a row with each prompt once
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
    candidates = candidate_rows(rollouts)
    if candidates is None:
        return inputs
    return replace(inputs, candidates=on_device(np.concatenate([ids for ids, _ in candidates]), device))


def candidate_rows(rollouts: Sequence[Rollout]) -> list[tuple[np.ndarray, np.ndarray]] | None:
    """Returns for each rollout of T tokens the candidates, [T, K] token ids, and their log-probs at sampling,
    [T, K] nats: -1 and `NO_CANDIDATE` in place of missing candidates. None if no rollout recorded any.
    """
    noted = [rollout.candidates for rollout in rollouts]
    width = max((max(each.counts, default=0) for each in noted if each is not None), default=0)
    if not width:
        return None
    rows = []
    for rollout, each in zip(rollouts, noted, strict=True):
        ids = np.full((rollout.length, width), -1, np.int64)
        logprobs = np.full(ids.shape, NO_CANDIDATE, np.float32)
        if each is not None:
            there = np.arange(width) < np.array(each.counts)[:, None]
            ids[there], logprobs[there] = each.token_ids, each.logprobs
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
