"""Gradients of an update whose bounds are searched, in one pass over its tokens: under guessed bounds, and
mended where the guess was wrong.

    all micro-batches but the last    score, gradient under the guess
    the last                          score
    choose                            the true bounds, by the tables of all
    those that the guess misjudged    score, gradient under the true bounds less that under the guess
    the last                          gradient under the true bounds

A guess misjudges a micro-batch if the loss of any of its tokens has another gradient under the true bounds.
Where it misjudges none, this is the gradient of two passes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bapo_lightning.data.batches.batch import MicroBatch
from bapo_lightning.modules.bound_rules import SearchMode
from bapo_lightning.objectives.bounds import BoundSearch
from bapo_lightning.objectives.objective import Objective, token_loss, with_slopes
from bapo_lightning.objectives.token_table import TokenTable
from bapo_lightning.ranks.collectives import count_over_ranks, max_over_ranks

# A redone token costs about three forward passes, four with checkpointing of blocks. A guess may save one.
MOST_REDONE = 1 / 4
REMEMBERED = 8  # updates over which the share of redone tokens is averaged, exponentially
ON_GRAPH = ("logp", "log_ratio", "ratio", "entropy", "log_z")  # columns through which gradients may flow


class Guesses:
    """The bounds of one search as a guess at those of the next, for as long as that is cheaper than a pass
    over the tokens before the first gradient.
    """

    def __init__(self, mode: SearchMode) -> None:
        self.mode = mode
        self.last: BoundSearch | None = None
        self.redone = 0.0  # share of tokens that guesses sent through the model again, or would have

    def for_part(self, micro_batches: Sequence[MicroBatch], device: torch.device) -> BoundSearch | None:
        """Guess at the bounds of a part of an update; None where it saves nothing, or there is none."""
        if self.mode == "exact" or len(micro_batches) == 1 or self.last is None:
            return None
        return BoundSearch(*(each.to(device) for each in self.last))

    @property
    def pay(self) -> bool:
        """Whether guesses have been right often enough."""
        return self.redone < MOST_REDONE

    def note(self, found: BoundSearch, redone: float | None) -> None:
        """Remembers a search, and the share of tokens that a guess at it had redone, or would have had; None:
        there was none.
        """
        self.last = found
        if redone is not None:
            share = float(redone > 0) if self.mode == "bitwise" else redone
            self.redone += (share - self.redone) / REMEMBERED

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"last": self.last and tuple(self.last), "redone": self.redone}

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes a state back; an empty one is that of a run without guesses."""
        self.last = BoundSearch(*state["last"]) if state.get("last") else None
        self.redone = state.get("redone", 0.0)


@dataclass(frozen=True)
class SearchedPart:
    """Micro-batches that share their bounds, once their gradients are added up."""

    bounds: BoundSearch  # the true ones
    losses: list[Tensor]  # of each micro-batch, 0-dim
    tables: list[TokenTable]  # of each, with the slopes under the true bounds
    redone: int | None  # tokens of all ranks that a guess had redone, or would have had; None: no guess
    search_seconds: float  # until the bounds were known, without gradients
    redo_seconds: float = 0.0


def speculate(
    micro_batches: Sequence[MicroBatch],
    guess: BoundSearch,
    score: Callable[[MicroBatch], TokenTable],
    choose: Callable[[Sequence[TokenTable]], BoundSearch],
    objective: Objective,
    backward: Callable[[Tensor, bool], None],
    restart: Callable[[], None] | None,
) -> SearchedPart:
    """Adds the gradients of micro-batches that share their bounds. Every rank must call it, with as many.

    Args:
        micro_batches: two or more, in order.
        guess: bounds that the search may find, the same on all ranks.
        score: micro-batch -> its table, with graph.
        choose: tables of all micro-batches, without graph -> their bounds.
        objective: objective of each token, which prepares no columns.
        backward: loss, whether it is the last one -> nothing; adds the gradient.
        restart: forgets the gradients so far; with it all micro-batches are done again if one is misjudged,
            as in the second of two passes. None: only the misjudged ones are.
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
    again = misjudged(tables[:-1], guess, bounds, objective)
    # Ranks have shares of each other's weights, so all make as many passes.
    rounds = 0 if are_same(guess, bounds) else max_over_ranks(len(again))
    known, redone = time.perf_counter(), 0
    if rounds:
        del last  # with its graph: no two micro-batches are held at once
        if restart is not None:
            restart()
            again, rounds = list(range(len(before))), len(before)
        for number in (again + [0] * rounds)[:rounds]:
            table = score(before[number])
            loss = token_loss(table, bounds, {}, objective)[0]
            if restart is None:
                loss = loss - token_loss(table, guess, {}, objective)[0]
            backward(loss, False)
            redone += len(table.ratio)
        last = score(end)
        (redone,) = count_over_ranks(redone + len(last.ratio), device=torch.device("cpu"))
    end_of_redo = time.perf_counter()
    backward(token_loss(last, bounds, {}, objective)[0], True)
    losses, seen = zip(*(token_loss(table, bounds, {}, objective) for table in tables), strict=True)
    tables = [with_slopes(table, objective) for table in seen]
    return SearchedPart(bounds, list(losses), tables, redone, known - start, end_of_redo - known)


def misjudged_tokens(
    tables: Sequence[TokenTable], guess: BoundSearch, bounds: BoundSearch, objective: Objective
) -> int:
    """Number of tokens in misjudged micro-batches of all ranks. Every rank must call it."""
    if are_same(guess, bounds):
        return 0
    tables = [table.detach() for table in tables]
    own = sum(len(tables[number].ratio) for number in misjudged(tables, guess, bounds, objective))
    return count_over_ranks(own, device=torch.device("cpu"))[0]


def misjudged(
    tables: Sequence[TokenTable], guess: BoundSearch, bounds: BoundSearch, objective: Objective
) -> list[int]:
    """Returns the numbers of the tables in which a token has another gradient under the true bounds."""
    if are_same(guess, bounds):
        return []
    guessed, true = ([_gradients(table, each, objective) for table in tables] for each in (guess, bounds))
    return [number for number in range(len(tables)) if not torch.equal(guessed[number], true[number])]


def are_same(guess: BoundSearch, bounds: BoundSearch) -> bool:
    """Whether two searches found the same bounds."""
    return bool((guess.low == bounds.low) & (guess.high == bounds.high))


def _gradients(table: TokenTable, bounds: BoundSearch, objective: Objective) -> Tensor:
    """Gradients of the loss by the scores of every token, [columns, N]."""
    leaves = {
        name: values.clone().requires_grad_() for name, values in table.columns.items() if name in ON_GRAPH
    }
    loss, _ = token_loss(TokenTable.of({**table.columns, **leaves}), bounds, {}, objective)
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return torch.stack(found)
