"""Continuous batching: rows enter and leave the batch between any two decoding steps.

    columns   0 . . . . . . . . end
    row 0     . . p p p s s s s s        p: prompt, s: sampled, .: padding
    row 1     p p p p p p p p s s        a row that enters ends where the others end
    row 2     . . . . . . p p p s

The token that was sampled last is read at the next step, by the weights of that step: so no token is sampled
from logits of weights that were replaced.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from transformers import Cache

from bapo_lightning.phases import advance
from bapo_lightning.rollout.engine import (
    Generation,
    GenerationRequest,
    SamplingParams,
    StreamCall,
    Streamed,
)
from bapo_lightning.rollout.gathered import Gathered
from bapo_lightning.rollout.hf.forward import Reader
from bapo_lightning.rollout.hf.kv_cache import move_content, move_into, put_behind
from bapo_lightning.rollout.hf.notes import Notes
from bapo_lightning.rollout.hf.sampling import sample_tokens
from bapo_lightning.rollout.seeds import uniforms
from bapo_lightning.types import Candidates, FinishReason, Segment
from bapo_lightning.types.candidates import joined_candidates
from bapo_lightning.values import StaleContext

ENTRY_SHARE = 0.125  # of the rows that are free before others enter: reading them is a pass of its own
ROOM = 64  # columns for new tokens, at least, when buffers are made
WASTE, SLACK = 0.125, 8  # share of the columns, and columns besides, that may be padding of all rows


@dataclass(slots=True)
class _Row:
    number: int | None  # None: it is not of the stream
    request: GenerationRequest
    tokens: array[int] = field(default_factory=lambda: array("i"))  # sampled so far
    fresh: array[float] = field(default_factory=lambda: array("f"))  # log-probs of those not yet told
    noted: list[Candidates | None] = field(default_factory=list)  # the same
    finish: FinishReason | None = None

    @property
    def is_streamed(self) -> bool:
        return self.number is not None

    @property
    def context(self) -> array[int]:
        return self.request.token_ids + self.tokens

    def take_fresh(self, version: int) -> Segment:
        """What was not yet told, all of weights of a `version`."""
        made = len(self.fresh)
        candidates = joined_candidates((1, noted) for noted in self.noted)
        segment = Segment(self.tokens[len(self.tokens) - made :], self.fresh, version, candidates=candidates)
        self.fresh, self.noted = array("f"), []
        return segment


@dataclass(eq=False)
class RunningBatch:
    """The requests of a stream: those that are sampled, and those that wait for room."""

    max_rows: int
    device: torch.device  # of the cache
    _rows: list[_Row] = field(default_factory=list, init=False)  # in the order of the cache's rows
    _ended: list[_Row] = field(default_factory=list, init=False)  # not yet told
    _queue: deque[_Row] = field(default_factory=deque, init=False)
    _gathered: Gathered = field(default_factory=Gathered, init=False)
    _context: StaleContext = field(default="keep", init=False)  # of the last call
    # Of the requests of the stream (True), at its last call, and of others while there are any.
    _sampling: dict[bool, SamplingParams] = field(default_factory=dict, init=False)
    _cache: Cache | None = field(default=None, init=False)  # None: no row has been read
    _end: int = field(default=0, init=False)  # columns of the cache
    _capacity: int = field(default=0, init=False)
    _version: int | None = field(default=None, init=False)  # of the weights of the last step

    @property
    def is_busy(self) -> bool:
        """Whether there are requests that have not ended."""
        return bool(self._rows or self._queue)

    def run(
        self, call: StreamCall, sampling: SamplingParams, reader: Reader, version: int
    ) -> dict[int, Streamed]:
        """Carries out a call; see `StreamingEngine.stream`."""
        self._give_up(set(call.given_up))
        self._gathered.drop(call.given_up)
        self._queue.extend(_Row(number, request) for number, request in call.begun.items())
        self._context, self._sampling[True] = call.context, sampling
        self._forget_stale(version)
        for _ in range(call.steps):
            if not self.is_busy:
                break
            self._step(self._entering(), reader)
        self._gather()
        return self._gathered.take()

    def beside(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams, reader: Reader, version: int
    ) -> list[Generation]:
        """Samples other requests, which find room at once. The stream goes on meanwhile, and the next call
        tells what came of it.
        """
        others = [_Row(None, request) for request in requests]
        self._sampling[False] = sampling
        self._forget_stale(version)
        self._step([*others, *self._entering()], reader)
        while any(row.finish is None for row in others):
            self._step(self._entering(), reader)
        del self._sampling[False]
        self._gather()
        return [Generation(row.take_fresh(version), row.finish) for row in others if row.finish is not None]

    def _forget_stale(self, version: int) -> None:
        """Makes the rows be read anew by new weights, where they must be."""
        if version != self._version and self._context == "recompute":
            self._queue.extendleft(reversed(self._rows))
            self._rows, self._cache = [], None
        self._version = version

    def _step(self, entering: Sequence[_Row], reader: Reader) -> None:
        logits = self._next_logits(entering, reader)
        self._rows += entering
        self._sample(logits)
        self._leave([row.finish is not None for row in self._rows])

    def _gather(self) -> None:
        """Keeps what the stream got since it was last kept, of one version: `_forget_stale` came after."""
        assert self._version is not None
        for row in [*self._ended, *self._rows]:
            if row.number is not None and row.fresh:
                self._gathered.add(row.number, row.take_fresh(self._version), row.finish)
        self._ended = []

    def _entering(self) -> list[_Row]:
        free = self.max_rows - len(self._rows)
        if free < ENTRY_SHARE * self.max_rows:
            return []
        return [self._queue.popleft() for _ in range(min(free, len(self._queue)))]

    def _next_logits(self, entering: Sequence[_Row], reader: Reader) -> Tensor:
        logits = [self._read_on(reader)] if self._rows else []
        if entering:
            logits.append(self._enter([row.context for row in entering], reader))
        return torch.cat(logits)

    def _read_on(self, reader: Reader) -> Tensor:
        assert self._cache is not None
        lengths = self._lengths()
        waste = self._end + 1 - max(lengths)
        is_full = self._end == self._capacity
        if is_full or waste > WASTE * self._end + SLACK:
            self._end -= waste
            if is_full:
                self._capacity = max(self._capacity, self._end + self._end // 2 + ROOM)
            move_content(self._cache, -waste, len(self._rows), self._capacity)
        self._end += 1
        mask, positions = None, None
        if min(lengths) < self._end:
            length = torch.tensor(lengths, device=reader.device)[:, None]
            mask = (torch.arange(self._end, device=reader.device) >= self._end - length).long()
            positions = length - 1
        last = torch.tensor([[row.tokens[-1]] for row in self._rows], device=reader.device)
        return reader.next_logits(last, self._cache, mask, positions)

    def _enter(self, contexts: Sequence[array[int]], reader: Reader) -> Tensor:
        longest = max(map(len, contexts))
        room = ROOM if self._cache is None else 0
        cache, _, _, logits = reader.opened(contexts, room)
        if self._cache is None:
            self._cache, self._end, self._capacity = cache, longest, longest + room
            return logits
        num_rows = len(self._rows) + len(contexts)
        if longest > self._capacity:
            self._capacity = longest + ROOM
        shift = max(longest - self._end, 0)
        move_content(self._cache, shift, num_rows, self._capacity)
        self._end += shift
        put_behind(self._cache, cache)
        return logits

    def _sample(self, logits: Tensor) -> None:
        seeds = np.array([row.request.seed for row in self._rows], dtype=np.uint64)
        counts = np.array([len(row.tokens) for row in self._rows])
        uniform = torch.from_numpy(uniforms(seeds, counts)).to(logits.device)
        for is_streamed, sampling in self._sampling.items():
            places = [place for place, row in enumerate(self._rows) if row.is_streamed is is_streamed]
            if len(places) == len(self._rows):
                _sample_alike(self._rows, logits, uniform, sampling)
            elif places:
                chosen = torch.tensor(places, device=logits.device)
                _sample_alike(
                    [self._rows[place] for place in places], logits[chosen], uniform[chosen], sampling
                )

    def _give_up(self, numbers: set[int]) -> None:
        if numbers:
            self._queue = deque(row for row in self._queue if row.number not in numbers)
            self._leave([row.number in numbers for row in self._rows])

    def _leave(self, ends: Sequence[bool]) -> None:
        """Fills the places of rows that leave with the last ones."""
        if not any(ends):
            return
        self._ended += [row for row in self._rows if row.finish is not None]
        left = len(self._rows) - sum(ends)
        holes = [place for place in range(left) if ends[place]]
        sources = [place for place in range(left, len(self._rows)) if not ends[place]]
        for hole, source in zip(holes, sources, strict=True):
            self._rows[hole] = self._rows[source]
        del self._rows[left:]
        if not left:
            self._cache = None
        elif self._cache is not None:
            places = torch.tensor([holes, sources], dtype=torch.long, device=self.device)
            move_into(self._cache, places[0], places[1], left)

    def _lengths(self) -> list[int]:
        return [len(row.request.token_ids) + len(row.tokens) for row in self._rows]


def _sample_alike(rows: Sequence[_Row], logits: Tensor, uniform: Tensor, sampling: SamplingParams) -> None:
    """Adds a token to each row; `logits[B, V]`, `uniform[B]`."""
    chosen, logprobs, every = sample_tokens(logits, sampling, uniform)
    for row, token, logprob in zip(rows, chosen.tolist(), logprobs.tolist(), strict=True):
        row.tokens.append(token)
        row.fresh.append(logprob)
        if token in sampling.stop_token_ids:
            row.finish = FinishReason.STOP
        elif len(row.tokens) == row.request.max_new_tokens:
            row.finish = FinishReason.LENGTH
    if sampling.noted:
        notes = Notes(sampling.noted)
        notes.add(torch.arange(len(rows)), every)
        for row, noted in zip(rows, notes.of_requests(len(rows)), strict=True):
            row.noted.append(noted)
    advance(sum(row.finish is not None and not row.is_streamed for row in rows))
