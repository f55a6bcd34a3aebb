"""Gradients of an update whose bounds are searched, in one pass over its tokens: under the bounds of the
search before as a guess, then corrected by the samples that the guess misjudged.

    all micro-batches but the last    score, gradient under the guess
    the last                          score
    choose                            the true bounds, by the tables of all
    the last                          gradient under the true bounds
    samples that were misjudged       score, gradient under the true bounds less the gradient under the guess

A guess misjudges a sample if the loss of any of its tokens has another gradient under the true bounds. The
sum is the gradient under the true bounds up to rounding; if nothing was misjudged, it is so to the bit. The
same weights, minibatch and guess give the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bapo_lightning.data.batches.batch import MicroBatch
from bapo_lightning.modules.token_tables import ON_GRAPH
from bapo_lightning.objectives.bounds import BoundSearch
from bapo_lightning.objectives.objective import Objective, token_loss, with_slopes
from bapo_lightning.objectives.token_table import TokenTable, concatenate
from bapo_lightning.system.ranks.collectives import count_over_ranks, max_over_ranks


@dataclass(frozen=True)
class SearchedPart:
    """Micro-batches that share their bounds, once their gradients are added up."""

    bounds: BoundSearch  # the true ones
    losses: list[Tensor]  # of each micro-batch, 0-dim
    tables: list[TokenTable]  # of each, with the slopes under the true bounds
    redone: int | None  # response tokens of all ranks that were scored again; None: nothing was guessed
    search_seconds: float  # until the bounds were known, without gradients
    redo_seconds: float = 0.0


def speculate(
    micro_batches: Sequence[MicroBatch],
    num_used: int,
    guess: BoundSearch,
    score: Callable[[MicroBatch], TokenTable],
    choose: Callable[[Sequence[TokenTable]], BoundSearch],
    objective: Objective,
    backward: Callable[[Tensor, bool], None],
    gather: Callable[[Sequence[int]], tuple[Sequence[MicroBatch], int]],
) -> SearchedPart:
    """Adds the gradients of micro-batches that share their bounds. Every rank must call it, with as many.

    Args:
        micro_batches: two or more, in order.
        num_used: number of the first ones that are not blank.
        guess: bounds that the search may find, the same on all ranks.
        score: micro-batch -> its table, with graph.
        choose: tables of all micro-batches, without graph -> their bounds.
        objective: objective of each token, which prepares no columns.
        backward: loss, whether it is the last one -> nothing; adds the gradient.
        gather: numbers of samples (column `sequence`) -> their micro-batches, as many on every rank, and the
            number of those that are not blank.
    """
    *before, end = micro_batches
    tables = []
    for micro_batch in before:
        loss, table = token_loss(score(micro_batch), guess, {}, objective)
        backward(loss, False)
        tables.append(table.detach())
    last = score(end)
    tables.append(last.detach())
    start = time.perf_counter()
    bounds = choose(tables)
    doubtful = samples_to_redo(tables[:-1][:num_used], guess, bounds, objective)
    known = time.perf_counter()
    gathered, num_real = ((), 0) if doubtful is None else gather(doubtful)
    backward(token_loss(last, bounds, {}, objective)[0], not gathered)
    del last  # with its graph: no two micro-batches are held at once
    start_of_redo, redone = time.perf_counter(), 0
    for number, micro_batch in enumerate(gathered, 1):
        table = score(micro_batch)
        loss = token_loss(table, bounds, {}, objective)[0] - token_loss(table, guess, {}, objective)[0]
        backward(loss, number == len(gathered))
        redone += len(table.ratio) if number <= num_real else 0
    end_of_redo = time.perf_counter()
    if gathered:
        redone = count_over_ranks(redone, device=torch.device("cpu"))[0]
    losses, seen = zip(*(token_loss(table, bounds, {}, objective) for table in tables), strict=True)
    tables = [with_slopes(table, objective) for table in seen]
    return SearchedPart(bounds, list(losses), tables, redone, known - start, end_of_redo - start_of_redo)


def samples_to_redo(
    tables: Sequence[TokenTable], guess: BoundSearch, bounds: BoundSearch, objective: Objective
) -> list[int] | None:
    """Returns this rank's misjudged samples, ascending; None if no rank has any. Every rank must call it."""
    if (guess.low == bounds.low) & (guess.high == bounds.high):
        return None
    samples = misjudged(tables, guess, bounds, objective) if tables else []
    return samples if max_over_ranks(len(samples)) else None


def misjudged(
    tables: Sequence[TokenTable], guess: BoundSearch, bounds: BoundSearch, objective: Objective
) -> list[int]:
    """Returns the samples with a token whose scores have other gradients under the true bounds, ascending."""
    table = TokenTable.of(concatenate(tables, tables[0].columns))
    guessed, true = (_gradients(table, each, objective) for each in (guess, bounds))
    differs = torch.stack(
        [(one != other).flatten(1).any(1) for one, other in zip(guessed, true, strict=True)]
    ).any(0)
    return table.sequence[differs].unique().tolist()


def _gradients(table: TokenTable, bounds: BoundSearch, objective: Objective) -> list[Tensor]:
    """Gradients of the loss by each column through which gradients flow, [N, 1] or [N, K]."""
    leaves = {
        name: values.clone().requires_grad_() for name, values in table.columns.items() if name in ON_GRAPH
    }
    loss, _ = token_loss(TokenTable.of({**table.columns, **leaves}), bounds, {}, objective)
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return [each.reshape(len(each), -1) for each in gradients]
