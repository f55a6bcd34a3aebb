"""Requests of a stream on vLLM's servers, read in the event loop of `peers`.

    caller                              loop                             servers
    call: begin, give up           -->  one connection a request   -->  continue from call to call
      wait for some tokens         <--  keeps arriving tokens      <--  token by token
    pause -> load weights -> go_on      new version from here on         pause(mode=keep) ... resume

A token has the version that the servers held when it arrived: while they are paused, only tokens sampled
earlier arrive. vLLM reports its own spans of versions with the last token; they must agree.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from bapo_lightning.rollout.engine import (
    UNSYNCED_VERSION,
    EngineDied,
    GenerationRequest,
    SamplingParams,
    StreamCall,
    Streamed,
)
from bapo_lightning.rollout.gathered import Gathered
from bapo_lightning.rollout.vllm.answers import (
    Span,
    StreamedChoice,
    StreamedLine,
    check_generation,
    checked_places,
    generation_of,
    most_bytes,
    num_logprobs,
)
from bapo_lightning.rollout.vllm.http import ServerClient, is_refusal, named
from bapo_lightning.system.errors import EngineError
from bapo_lightning.system.peers import PeerFault
from bapo_lightning.system.peers.answers import judged, reason_of
from bapo_lightning.system.peers.loop import run, spawn
from bapo_lightning.system.peers.wire import Wire
from bapo_lightning.system.values import StaleContext

ROUNDS = 5  # of the loop, in which it reads tokens that have arrived
MOST_LATE = 8  # parts of a request that may still arrive from a paused server


@dataclass(eq=False)
class _Reading:
    """A running request."""

    client: ServerClient
    request: GenerationRequest
    task: asyncio.Task[None] | None = None
    versions: list[int] = field(default_factory=list)  # of its tokens


@dataclass(eq=False)
class ServerStream:
    """Requests that servers continue between calls. Methods are called by one thread at a time."""

    clients: Sequence[ServerClient]
    deadline_seconds: float  # a server with requests that sends nothing for this long counts as dead
    model_path: str  # Hugging Face folder or hub name
    version: int = field(default=UNSYNCED_VERSION, init=False)  # version of arriving tokens
    _context: StaleContext = field(default="keep", init=False)  # of the last call
    _syncs: int = field(default=0, init=False)  # number of syncs that keys and values have outlived
    _readings: dict[int, _Reading] = field(default_factory=dict, init=False)
    _gathered: Gathered = field(default_factory=Gathered, init=False)
    _fresh: Counter[int] = field(default_factory=Counter, init=False)  # tokens of each request in `_gathered`
    _heard: dict[str, float] = field(default_factory=dict, init=False)  # time of each server's last tokens
    _failure: EngineError | None = field(default=None, init=False)
    _wire: Wire | None = field(default=None, init=False)
    # Number of parts of each request that came during a pause; None if servers are not paused.
    _late: Counter[int] | None = field(default=None, init=False)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    @property
    def salt(self) -> dict[str, str]:
        """Entry of a request that keeps the prefix cache from using keys and values of old weights."""
        return {"cache_salt": str(self._syncs)} if self._syncs else {}

    def is_running(self, client: ServerClient) -> bool:
        """Whether a server has requests that have not ended."""
        return any(reading.client is client for reading in list(self._readings.values()))

    def expected(self, client: ServerClient) -> int:
        """Returns the number of tokens that a server may still sample for unfinished requests."""
        running = [each for each in list(self._readings.values()) if each.client is client]
        return sum(each.request.max_new_tokens - len(each.versions) for each in running)

    def call(self, call: StreamCall, sampling: SamplingParams, model: str) -> dict[int, Streamed]:
        """Begins and gives up requests, then waits for `call.steps` more tokens of one of them, or for the
        end of all. Raises EngineDied, after which all requests are forgotten.
        """
        self._context = call.context
        return run(self._call(call, sampling, model))

    def pause(self) -> None:
        """Stops all servers between two steps; their requests stay."""
        if self._readings:
            for client in self.clients:
                client.pause()
            run(self._begin_pause())

    def go_on(self, version: int) -> None:
        """Makes servers drop results of old weights, except those that running requests may keep, and
        continue under new weights of a `version`.
        """
        kept = bool(self._readings) and self._context == "keep"
        self._syncs += kept
        if not kept:
            for client in self.clients:
                client.reset_prefix_cache(with_running=bool(self._readings))
        self.version = version
        self.resume()

    def resume(self) -> None:
        """Lets all servers sample; servers of a killed run may still be paused."""
        run(self._end_pause())
        for client in self.clients:
            client.resume()

    def forget(self) -> None:
        """Drops all requests, including finished ones not yet returned."""
        run(self._give_up(list(self._readings)))
        self._gathered, self._failure = Gathered(), None
        self._fresh.clear()

    def close(self) -> None:
        """Ends all requests and connections. May be called twice."""
        self.forget()
        wire, self._wire = self._wire, None
        if wire is not None:
            run(wire.close())

    async def _begin_pause(self) -> None:
        """Reads tokens that servers sent before the pause; after it only few may still arrive."""
        before = -1
        while before != (before := self._fresh.total()):
            for _ in range(ROUNDS):
                await asyncio.sleep(0)
        self._late = Counter()

    async def _end_pause(self) -> None:
        self._late = None
        self._heard = dict.fromkeys(self._heard, asyncio.get_running_loop().time())

    async def _give_up(self, numbers: Sequence[int]) -> None:
        given_up = [self._readings.pop(number) for number in numbers if number in self._readings]
        tasks = [reading.task for reading in given_up if reading.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._gathered.drop(numbers)
        for number in numbers:
            self._fresh.pop(number, None)

    async def _call(self, call: StreamCall, sampling: SamplingParams, model: str) -> dict[int, Streamed]:
        self._wire = self._wire or Wire()
        await self._give_up(call.given_up)
        for number, request in call.begun.items():
            self._begin(number, request, sampling, model)
        while self._readings and max(self._fresh.values(), default=0) < call.steps:
            self._check()
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), self.deadline_seconds)
            except TimeoutError:
                continue
        self._check()
        self._fresh.clear()
        return self._gathered.take()

    def _check(self) -> None:
        """Raises the failure of a request, or EngineDied for a silent server."""
        now = asyncio.get_running_loop().time()
        for reading in self._readings.values():
            if now - self._heard[reading.client.url] > self.deadline_seconds:
                reading.client.lost = True
                reason = f"{reading.client.url}: it generated nothing for {self.deadline_seconds:.0f} s"
                self._failure = EngineDied(reason)
        if self._failure is not None:
            raise self._failure

    def _begin(self, number: int, request: GenerationRequest, sampling: SamplingParams, model: str) -> None:
        loads = Counter(reading.client.url for reading in self._readings.values())
        client = min(self.clients, key=lambda client: loads[client.url])
        if not loads[client.url]:
            self._heard[client.url] = asyncio.get_running_loop().time()
        reading = self._readings[number] = _Reading(client, request)
        reading.task = spawn(
            self._read(number, reading, model, sampling), lambda error: self._fail(client, error)
        )

    async def _read(self, number: int, reading: _Reading, model: str, sampling: SamplingParams) -> None:
        client, requested = reading.client, num_logprobs(sampling, self.model_path)
        url = f"{client.url}/inference/v1/generate"
        body = {
            "model": model,
            "token_ids": reading.request.token_ids.tolist(),
            "stream": True,  # tokens come one by one
            "sampling_params": sampling_fields(reading.request, sampling, requested) | {"detokenize": False},
            **self.salt,
        }
        assert self._wire is not None
        try:
            most, seconds = most_bytes(reading.request, requested), self.deadline_seconds
            async with aclosing(self._wire.lines(url, body, most, seconds)) as lines:
                async for line in lines:
                    if (choice := judged_part(line, url)) is not None:
                        self._keep(number, reading, choice, sampling)
                        self._arrived.set()
                        if choice.finish_reason is not None:
                            return
            raise PeerFault("it ended a request before its last token")
        except Exception as error:  # also our own errors: a request that ends silently would be lost
            self._fail(client, error)
        finally:
            if self._readings.get(number) is reading:
                del self._readings[number]
            self._arrived.set()

    def _fail(self, client: ServerClient, error: BaseException) -> None:
        if is_refusal(error) or isinstance(error, EngineError):
            failure = EngineError(named(error, client))
        else:
            client.lost, failure = True, EngineDied(named(error, client))
        self._failure = self._failure or failure

    def _keep(self, number: int, reading: _Reading, choice: StreamedChoice, sampling: SamplingParams) -> None:
        """Stores checked tokens. Raises PeerFault for impossible ones, before anything is stored."""
        reason, tokens = choice.finish_reason, choice.token_ids
        content = choice.logprobs.content if choice.logprobs is not None else ()
        logprobs, before = [token.logprob for token in content], len(reading.versions)
        check_generation(reading.request, sampling, self.model_path, before, tokens, logprobs, reason)
        if any(token != scored.token_id for token, scored in zip(tokens, content, strict=True)):
            raise PeerFault("it sent log-probs of other tokens than it sampled")
        versions = [self.version] * len(tokens)
        if reason is not None:
            check_spans([*reading.versions, *versions], choice.weight_versions)
        if tokens:
            self._heard[reading.client.url] = asyncio.get_running_loop().time()
            self._note_late(number, reading.client)
        places = ([(each.token_id, each.logprob) for each in token.top_logprobs] for token in content)
        known = checked_places(places, self.model_path)
        generation = generation_of(tokens, logprobs, reason, sampling, self.version, known)
        self._gathered.add(number, generation.segment, generation.finish if reason else None)
        self._fresh[number] += len(tokens)
        reading.versions += versions

    def _note_late(self, number: int, client: ServerClient) -> None:
        if self._late is not None:
            self._late[number] += 1
            if self._late[number] > MOST_LATE:
                raise PeerFault(f"{client.url} keeps sampling while it is paused")


def sampling_fields(request: GenerationRequest, sampling: SamplingParams, logprobs: int) -> dict[str, Any]:
    """Returns all fields that shape the distribution, for both bodies: a server has its own defaults."""
    return {
        "max_tokens": request.max_new_tokens,
        "seed": request.seed,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": True,
        "logprobs": logprobs,
    }


def judged_part(line: bytes, url: str) -> StreamedChoice | None:
    """Returns the tokens of a line of a stream, if it has any. Raises PeerFault for an impossible line."""
    text = line.removeprefix(b"data:").strip()
    if not text or text.startswith(b":") or text == b"[DONE]":  # a comment keeps the connection open
        return None
    part = judged(StreamedLine, text, url)
    if part.error is not None:
        raise PeerFault(f"{url}: {reason_of(text, 200)}")
    if part.choices is None:
        raise PeerFault(f"{url} sent a part without tokens")
    return part.choices[0] if part.choices else None


def check_spans(versions: Sequence[int], spans: Sequence[Span] | None) -> None:
    """Raises PeerFault without vLLM's spans of versions, EngineError if the tokens' versions differ."""
    if spans is None:
        raise PeerFault("it does not report which weights sampled a response")
    ours, end = [], 0
    for version, each in groupby(versions):
        start, end = end, end + len(list(each))
        ours.append((str(version), start, end))
    theirs = [(span.version, span.start, span.end) for span in spans]
    if ours != theirs:
        raise EngineError(
            f"vLLM reports tokens of versions {theirs} in a response, but they arrived as {ours} (version, "
            "start, end): they are labelled wrongly; does another program change the server's weights?"
        )
