"""Continuous batching: rows enter and leave the batch between any two decoding steps.

    columns   0 . . . . . . . . end
    row 0     . . p p p s s s s s        p: prompt, s: sampled, .: padding
    row 1     p p p p p p p p s s        a row that enters ends where the others end
    row 2     . . . . . . p p p s

The token that was sampled last is read at the next step, with the weights of that step: so no token is
sampled from logits of replaced weights. Each token takes one random number of its request.

Shapes: B rows, V vocabulary.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import Cache

from bapo_lightning.rollout.engine import (
    Generation,
    GenerationRequest,
    SamplingParams,
    StreamCall,
    Streamed,
    uniforms,
)
from bapo_lightning.rollout.gathered import Gathered
from bapo_lightning.rollout.hf.reader import Reader, move_content, move_into, put_behind
from bapo_lightning.system.phases import advance
from bapo_lightning.system.values import StaleContext
from bapo_lightning.types import Candidates, FinishReason, Segment

ENTRY_SHARE = 0.125  # share of rows that must be free before others enter, which takes a separate pass
ROOM = 64  # smallest number of columns for new tokens when buffers are made
WASTE, SLACK = 0.125, 8  # share of the columns, and additional columns, that may be padding of all rows
BLOCK = 512  # tokens summed together: a vocabulary of 150 000 is 300 numbers to search, then 512
# For each row: seed, tokens of its context, sampled ones, their limit, the last one; whether of a stream.
NUMBERS = np.dtype(
    [
        *(("seed", np.uint64), ("length", np.int64), ("made", np.int64)),
        *(("limit", np.int64), ("last", np.int64), ("is_streamed", np.bool_)),
    ]
)


@dataclass(slots=True)
class _Row:
    number: int | None  # None: it is not part of the stream
    request: GenerationRequest
    tokens: array[int] = field(default_factory=lambda: array("i"))  # sampled so far
    fresh: array[float] = field(default_factory=lambda: array("f"))  # log-probs of tokens not yet returned
    candidates: Candidates | None = None  # candidates of the same tokens; None: none were recorded
    finish: FinishReason | None = None

    @property
    def context(self) -> array[int]:
        return self.request.token_ids + self.tokens

    def take_fresh(self, version: int) -> Segment:
        """Returns the tokens that were not yet returned, all sampled by weights of a `version`."""
        count = len(self.fresh)
        segment = Segment(
            self.tokens[len(self.tokens) - count :], self.fresh, version, candidates=self.candidates
        )
        self.fresh, self.candidates = array("f"), None
        return segment

    def note(self, token_ids: array[int], logprobs: array[float]) -> None:
        """Records the candidates at the place that was sampled last."""
        if self.candidates is None:
            self.candidates = Candidates(array("i"), array("f"), array("i"))
        self.candidates.token_ids.extend(token_ids)
        self.candidates.logprobs.extend(logprobs)
        self.candidates.counts.append(len(token_ids))

    @property
    def numbers(self) -> tuple[int, ...]:
        """Returns its `NUMBERS` before it is read."""
        prompt, sampled, request = len(self.request.token_ids), len(self.tokens), self.request
        return request.seed, prompt + sampled, sampled, request.max_new_tokens, 0, self.number is not None


@dataclass(eq=False)
class RunningBatch:
    """The requests of a stream or a pass, some being sampled and some waiting for room."""

    max_rows: int
    device: torch.device  # of the cache
    _rows: list[_Row] = field(default_factory=list, init=False)  # in the order of the cache's rows
    _numbers: np.ndarray = field(default_factory=lambda: np.empty(0, NUMBERS), init=False)  # of these rows
    _ended: list[_Row] = field(default_factory=list, init=False)  # not yet returned
    _queue: deque[_Row] = field(default_factory=deque, init=False)
    _gathered: Gathered = field(default_factory=Gathered, init=False)
    _context: StaleContext = field(default="keep", init=False)  # of the last call
    # Parameters of the stream's requests (True), at its last call, and of others while there are any.
    _sampling: dict[bool, SamplingParams] = field(default_factory=dict, init=False)
    _cache: Cache | None = field(default=None, init=False)  # None: no row has been read
    _is_pass: bool = field(default=False, init=False)  # nothing can enter
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
        """Executes a call; see `RolloutEngine.stream`."""
        self._give_up(set(call.given_up))
        self._gathered.drop(call.given_up)
        self._queue.extend(_Row(number, request) for number, request in call.begun.items())
        self._context, self._sampling[True], self._is_pass = call.context, sampling, False
        self._forget_stale(version)
        for _ in range(call.steps):
            if not self.is_busy:
                break
            self._step(self._entering(), reader)
        self._gather()
        return self._gathered.take()

    def sample_now(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams, reader: Reader, version: int
    ) -> list[Generation]:
        """Samples other requests at once, while a stream continues; its next call returns its results."""
        self._is_pass = not self.is_busy
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
        """Makes new weights read the rows again, if the stream recomputes."""
        if version != self._version and self._context == "recompute":
            self._queue.extendleft(reversed(self._rows))
            self._rows, self._numbers, self._cache = [], self._numbers[:0], None
        self._version = version

    def _step(self, entering: Sequence[_Row], reader: Reader) -> None:
        logits = self._next_logits(entering, reader)
        if entering:
            self._rows += entering
            numbers = np.array([row.numbers for row in entering], NUMBERS)
            self._numbers = np.concatenate([self._numbers, numbers])
        self._sample(logits)

    def _gather(self) -> None:
        """Stores the stream's new tokens, which are of one version: `_forget_stale` is called later."""
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
            logits.append(self._enter(entering, reader))
        return torch.cat(logits)

    def _read_on(self, reader: Reader) -> Tensor:
        assert self._cache is not None
        lengths = self._numbers["length"]
        waste = self._end + 1 - int(lengths.max())
        is_full = self._end == self._capacity
        if is_full or (waste > WASTE * self._end + SLACK and not self._is_pass):
            self._end -= waste
            if is_full:
                self._capacity = max(self._capacity, self._end + self._end // 2 + ROOM)
            move_content(self._cache, -waste, len(self._rows), self._capacity)
        self._end += 1
        mask, positions = None, None
        if lengths.min() < self._end:
            length = torch.tensor(lengths.copy(), device=reader.device)[:, None]
            mask = (torch.arange(self._end, device=reader.device) >= self._end - length).long()
            positions = length - 1
        last = torch.tensor(self._numbers["last"].copy(), device=reader.device)
        return reader.next_logits(last[:, None], self._cache, mask, positions)

    def _enter(self, entering: Sequence[_Row], reader: Reader) -> Tensor:
        contexts = [row.context for row in entering]
        longest = max(map(len, contexts))
        room = 0
        if self._cache is None:
            room = max(row.request.max_new_tokens for row in entering) if self._is_pass else ROOM
        cache, logits = reader.opened(contexts, room)
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
        """Adds a token to each row, from `logits[B, V]`; rows that end leave."""
        numbers, ends = self._numbers, np.zeros(len(self._rows), np.bool_)
        uniform = torch.from_numpy(uniforms(numbers["seed"], numbers["made"])).to(logits.device)
        numbers["length"] += 1
        numbers["made"] += 1
        for is_streamed, sampling in self._sampling.items():
            places = np.flatnonzero(numbers["is_streamed"] == is_streamed)
            if len(places) == len(self._rows):
                ends[places] = self._add(places, logits, sampling, uniform)
            elif len(places):
                chosen = torch.from_numpy(places).to(logits.device)
                ends[places] = self._add(places, logits[chosen], sampling, uniform[chosen])
        advance(int((ends & ~numbers["is_streamed"]).sum()))
        self._leave(ends)

    def _add(
        self, places: np.ndarray, logits: Tensor, sampling: SamplingParams, uniform: Tensor
    ) -> np.ndarray:
        """Adds a token to rows `places` [B], by `logits[B, V]` and `uniform[B]`; returns which rows end."""
        chosen, logprobs, all_logprobs = sample_tokens(logits, sampling, uniform)
        is_whole = len(places) == len(self._rows)
        rows = self._rows if is_whole else [self._rows[place] for place in places]
        token_ids, stops = chosen.tolist(), sampling.stop_token_ids
        for row, token, logprob in zip(rows, token_ids, logprobs.tolist(), strict=True):
            row.tokens.append(token)
            row.fresh.append(logprob)
        if sampling.num_candidates:
            _note(rows, all_logprobs, sampling.num_candidates)
        self._numbers["last"][places] = token_ids
        stopped = np.array([token in stops for token in token_ids], np.bool_)
        ends: np.ndarray = stopped | (self._numbers["made"] == self._numbers["limit"])[places]
        for place in np.flatnonzero(ends):
            rows[place].finish = FinishReason.STOP if stopped[place] else FinishReason.LENGTH
        return ends

    def _give_up(self, numbers: set[int]) -> None:
        if numbers:
            self._queue = deque(row for row in self._queue if row.number not in numbers)
            self._leave(np.array([row.number in numbers for row in self._rows], np.bool_))

    def _leave(self, ends: np.ndarray) -> None:
        """Fills the places of rows that leave, marked by `ends` [B], with the last rows."""
        if not ends.any():
            return
        self._ended += [row for row in self._rows if row.finish is not None]
        left = len(ends) - int(ends.sum())
        holes, sources = np.flatnonzero(ends[:left]), left + np.flatnonzero(~ends[left:])
        for hole, source in zip(holes, sources, strict=True):
            self._rows[hole] = self._rows[source]
        self._numbers[holes] = self._numbers[sources]
        self._numbers = self._numbers[:left]
        del self._rows[left:]
        if not left:
            self._cache = None
        elif self._cache is not None:
            places = torch.from_numpy(np.stack([holes, sources])).to(self.device)
            move_into(self._cache, places[0], places[1], left)


def _note(rows: Sequence[_Row], logprobs: Tensor, num_candidates: int) -> None:
    tokens, values, counts = (each.cpu().numpy() for each in candidates(logprobs, num_candidates))
    token_ids, floats = array("i", tokens.astype(np.int32).tobytes()), array("f", values.tobytes())
    end = 0
    for row, count in zip(rows, counts.tolist(), strict=True):
        start, end = end, end + count
        row.note(token_ids[start:end], floats[start:end])


def sample_tokens(logits: Tensor, sampling: SamplingParams, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Samples one token per row of `logits[B, V]`. Returns tokens[B], their log-probs[B] in nats under the
    sampling distribution, and log-probs of all tokens [B, V], -inf if a token cannot be sampled.

    Temperature, top_k and top_p apply in that order; greedy (temperature 0) puts all mass on the best token:
    log-prob 0. `uniform`: [B] float64 in [0, 1); each picks the token in whose part of the cumulative
    probability it falls.
    """
    logits = logits.float()
    if sampling.temperature == 0:
        best = logits.argmax(-1)
        certain = torch.zeros_like(best, dtype=torch.float32)
        return best, certain, torch.full_like(logits, -torch.inf).scatter_(1, best[:, None], 0.0)
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    logprobs = truncated(logits, sampling.top_k, sampling.top_p).log_softmax(-1)
    chosen = tokens_at(logprobs.exp(), uniform)
    return chosen, logprobs.gather(-1, chosen[:, None])[:, 0], logprobs


def candidates(logprobs: Tensor, num_candidates: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the likeliest tokens of each row, at most `num_candidates` that can be sampled, row after row:
    (tokens[M], their log-probs[M], number of tokens of each row[B]).
    """
    if num_candidates < logprobs.shape[-1]:
        logprobs, tokens = logprobs.topk(num_candidates)
    else:
        tokens = torch.arange(logprobs.shape[-1], device=logprobs.device).expand_as(logprobs)
    can_be = logprobs > -torch.inf
    return tokens[can_be], logprobs[can_be], can_be.sum(-1)


def tokens_at(mass: Tensor, uniform: Tensor) -> Tensor:
    """Returns the token [B] at which the cumulative sum of `mass[B, V]` passes the share `uniform[B]` of its
    total; never one without mass. It searches blocks, then one block: float64 sums over all are slow.
    """
    rows = torch.arange(len(mass), device=mass.device)
    size = min(BLOCK, mass.shape[-1])
    blocks = pad(mass, (0, -mass.shape[-1] % size)).unflatten(-1, (-1, size))  # [B, V / size, size]
    up_to = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    aim = uniform * up_to[:, -1]
    block = first_above(up_to, aim)
    inside = blocks[rows, block].double().cumsum(-1)
    token = block * size + first_above(inside, aim - pad(up_to, (1, 0))[rows, block])
    return token.clamp(max=mass.shape[-1] - 1)


def first_above(cumulative: Tensor, aim: Tensor) -> Tensor:
    """Returns the first index [B] at which `cumulative[B, n]` is above `aim[B]`, so that it rises there; the
    last index at which it rises if rounding put `aim` beyond its end. NaN sums give the last index; the NaN
    shows when the token is scored.
    """
    below_all = torch.nextafter(cumulative[:, -1], cumulative.new_zeros(()))
    index = torch.searchsorted(cumulative, torch.minimum(aim, below_all)[:, None], right=True)[:, 0]
    return index.clamp(max=cumulative.shape[-1] - 1)


def truncated(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """Sets `logits[B, V]` to -inf outside the `top_k` likeliest, then outside the smallest `top_p` mass."""
    if 0 < top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], -torch.inf)
    if top_p < 1:
        ordered, order = logits.sort(descending=True)
        mass = ordered.softmax(-1)
        beyond = mass.cumsum(-1) - mass >= top_p  # the tokens before it already hold enough
        logits = logits.masked_fill(beyond.scatter(-1, order, beyond), -torch.inf)
    return logits
