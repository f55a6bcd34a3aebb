"""Sums over responses and groups, spread to their tokens; rows of a response follow each other.

No function waits for the device, and all work under `torch.vmap`. Shapes: N tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bapo_lightning.objectives.token_table import TokenTable


def sequence_sum(values: Tensor, table: TokenTable) -> Tensor:
    """Returns the sum of `values` over the tokens of each token's response, [N]."""
    rows = _responses(table.sequence)
    return torch.zeros_like(values).scatter_add(0, rows, values * table.count).gather(0, rows)


def step_sum(values: Tensor, table: TokenTable) -> Tensor:
    """Returns the sum of `values` over the trained tokens of each token's step, [N]."""
    sequence, step = table.sequence, table["step"]
    begins = (sequence[1:] != sequence[:-1]) | (step[1:] != step[:-1])
    rows = torch.nn.functional.pad(begins.long().cumsum(0), (1, 0))
    return torch.zeros_like(values).scatter_add(0, rows, values * table.count).gather(0, rows)


def sequence_length(table: TokenTable) -> Tensor:
    """Returns the number of trained tokens of each token's response, [N]."""
    return sequence_sum(torch.ones_like(table.count), table)


def mean_over_sequence(values: Tensor, table: TokenTable) -> Tensor:
    """Returns the mean of `values` over the tokens of each token's response, [N]."""
    return sequence_sum(values, table) / sequence_length(table)


def sum_so_far(values: Tensor, table: TokenTable) -> Tensor:
    """Returns sum_{k <= t} values_k over each token's response up to this token, [N]."""
    return _sum_ahead((values * table.count).flip(0), table.sequence.flip(0), 1.0).flip(0)


def least_before(values: Tensor, table: TokenTable, first: float) -> Tensor:
    """Returns min_{k < t} values_k over each token's response before this token, [N], and `first` at its
    first; of a row of several tokens at the last of them.
    """
    least, sequence, step = values.flip(0), table.sequence.flip(0), 1
    while step < len(values):
        least, step = torch.minimum(least, _ahead(least, sequence, step, torch.inf)), 2 * step
    before = _ahead(least, sequence, 1, first).flip(0)
    return torch.where(table.count > 1, least.flip(0), before)


def discounted_sum_ahead(values: Tensor, table: TokenTable, discount: float) -> Tensor:
    """Returns sum_{k >= t} discount^(k - t) values_k over each token's response from this token on, [N]."""
    return _sum_ahead(values * table.count, table.sequence, discount)


def _sum_ahead(total: Tensor, sequence: Tensor, discount: float) -> Tensor:
    """Combines sums of 1, 2, 4, ... tokens in log2(N) passes, so that nothing overflows."""
    factor, step = discount, 1
    while step < len(total):
        total = total + factor * _ahead(total, sequence, step, 0.0)
        factor, step = factor * factor, 2 * step
    return total


def _ahead(values: Tensor, sequence: Tensor, step: int, beyond: float) -> Tensor:
    """Returns the values `step` tokens further in each response, and `beyond` after its end, [N]."""
    shifted = torch.where(sequence[:-step] == sequence[step:], values[step:], beyond)
    return torch.nn.functional.pad(shifted, (0, step), value=beyond)


def at_next(values: Tensor, table: TokenTable) -> Tensor:
    """Returns the value at the next token of the response, 0 after the last, [N]; for a row of several tokens
    the mean of their values.
    """
    follows = (table.sequence[1:] == table.sequence[:-1]) & (table.count[1:] > 0)
    following = torch.nn.functional.pad(torch.where(follows, values[1:], 0.0), (0, 1))
    num_inner = (table.count - 1).clamp_min(0)
    return (values * num_inner + following) / (num_inner + 1)


def rank_in_sequence(values: Tensor, table: TokenTable) -> Tensor:
    """Returns how many tokens of each token's response have a smaller value, [N]."""
    by_value = values.argsort(stable=True)
    order = by_value.gather(0, table.sequence.gather(0, by_value).argsort(stable=True))
    sequence, count, ordered = (each.gather(0, order) for each in (table.sequence, table.count, values))
    before = count.cumsum(0) - count
    differs = (sequence[1:] != sequence[:-1]) | (ordered[1:] != ordered[:-1])
    equals = torch.nn.functional.pad(differs.long().cumsum(0), (1, 0))  # number of each run of equal values
    rank = _at_start(before, equals) - _at_start(before, sequence)
    return torch.zeros_like(rank).scatter(0, order, rank)


def group_sum(values: Tensor, table: TokenTable) -> Tensor:
    """Returns the sum of `values` over the tokens of each token's group, [N]; of the whole update's table,
    since a micro-batch may hold parts of groups.
    """
    return torch.zeros_like(values).scatter_add(0, table.group, values * table.count).gather(0, table.group)


def per_sequence(values: Tensor, table: TokenTable) -> Tensor:
    """Divides `values`, equal in a response, among its tokens: their sums are sums over responses, [N]."""
    return values / sequence_length(table)


def per_step(values: Tensor, table: TokenTable) -> Tensor:
    """Divides `values`, equal in a step, among its tokens: their sums are sums over steps, [N]."""
    return values / step_sum(torch.ones_like(table.count), table)


def mean_over_tokens(values: Tensor, count: Tensor) -> Tensor:
    """Returns the mean of `values`, [N], over the `count` tokens, [N], that rows stand for, 0-dim."""
    return (values * count).sum() / count.sum()


def _responses(sequence: Tensor) -> Tensor:
    # place of each token's response among the responses of the table, [N]
    return torch.nn.functional.pad((sequence[1:] != sequence[:-1]).long().cumsum(0), (1, 0))


def _at_start(values: Tensor, sequence: Tensor) -> Tensor:
    # value at the first token of each token's response, [N]
    rows = torch.arange(len(sequence), device=sequence.device)
    starts = torch.nn.functional.pad(sequence[1:] != sequence[:-1], (1, 0), value=True)
    return values.gather(0, torch.where(starts, rows, 0).cummax(0).values)
