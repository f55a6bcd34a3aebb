"""Requests of a stream on vLLM's servers, read by a thread with an event loop of its own.

    caller                              loop                             servers
    call: begin, give up           -->  one connection a request   -->  go on from call to call
      wait for some tokens         <--  keeps what arrives         <--  token by token
    pause -> load weights -> go_on      new version from here on         pause(mode=keep) ... resume

A token has the version that the servers held when it arrived: while they are paused none arrives but those
that were sampled before. vLLM tells its own spans of versions with the last token; they must be the same.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeVar

import aiohttp

from bapo_lightning.errors import EngineError
from bapo_lightning.rollout.engine import (
    UNSYNCED_VERSION,
    EngineDied,
    GenerationRequest,
    SamplingParams,
    StreamCall,
    Streamed,
)
from bapo_lightning.rollout.gathered import Gathered
from bapo_lightning.rollout.vllm.answers import generation_of, logprobs_asked
from bapo_lightning.rollout.vllm.http import ServerClient, error_message
from bapo_lightning.values import StaleContext

Result = TypeVar("Result")


@dataclass(eq=False)
class _Reading:
    """A request on its way."""

    client: ServerClient
    task: asyncio.Task[None] | None = None
    versions: list[int] = field(default_factory=list)  # of its tokens


@dataclass(eq=False)
class ServerStream:
    """Requests that servers go on with between calls. The methods are called by one thread at a time."""

    clients: Sequence[ServerClient]
    deadline_seconds: float  # a server that has requests and sends nothing for so long counts as dead
    model_path: str  # Hugging Face folder or hub name
    version: int = field(default=UNSYNCED_VERSION, init=False)  # of what arrives
    _context: StaleContext = field(default="keep", init=False)  # of the last call
    _syncs: int = field(default=0, init=False)  # that keys and values have outlived
    _readings: dict[int, _Reading] = field(default_factory=dict, init=False)
    _gathered: Gathered = field(default_factory=Gathered, init=False)
    _fresh: Counter[int] = field(default_factory=Counter, init=False)  # tokens of each request in `_gathered`
    _heard: dict[str, float] = field(default_factory=dict, init=False)  # when each server sent something
    _failure: EngineError | None = field(default=None, init=False)
    _loop: asyncio.AbstractEventLoop | None = field(default=None, init=False)
    _session: aiohttp.ClientSession | None = field(default=None, init=False)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    @property
    def salt(self) -> dict[str, str]:
        """Entry of a request, without which the prefix cache would give it keys and values of old weights."""
        return {"cache_salt": str(self._syncs)} if self._syncs else {}

    def is_running(self, client: ServerClient) -> bool:
        """Whether a server has requests that have not ended."""
        return any(reading.client is client for reading in list(self._readings.values()))

    def call(self, call: StreamCall, sampling: SamplingParams, model: str) -> dict[int, Streamed]:
        """Begins and gives up requests, then waits for `call.steps` more tokens of one of them, or the end of
        all. Raises EngineDied, after which no request is known.
        """
        self._context = call.context
        return self._run(self._call(call, sampling, model))

    def pause(self) -> None:
        """Stops all servers between two steps; their requests stay."""
        if self._readings:
            for client in self.clients:
                client.pause()

    def go_on(self, version: int) -> None:
        """Makes servers forget what they computed by old weights, but for what running requests may keep, and
        go on under new weights of a `version`.
        """
        kept = bool(self._readings) and self._context == "keep"
        self._syncs += kept
        if not kept:
            for client in self.clients:
                client.reset_prefix_cache(with_running=bool(self._readings))
        self.version = version
        self.resume()

    def resume(self) -> None:
        """Lets all servers sample, as those of a run that was killed may not."""
        if self._loop is not None:
            self._run(self._note_time())
        for client in self.clients:
            client.resume()

    def forget(self) -> None:
        """Gives up all requests, and what came of those that have ended."""
        if self._loop is not None:
            self._run(self._give_up(list(self._readings)))
        self._gathered, self._failure = Gathered(), None
        self._fresh.clear()

    def close(self) -> None:
        """Ends the thread. Calling it twice is fine."""
        if self._loop is not None:
            self.forget()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop = None

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._serve, args=(self._loop,), daemon=True)
            self._thread.start()
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        if self._session is not None:
            loop.run_until_complete(self._session.close())
        loop.close()

    async def _note_time(self) -> None:
        self._heard = dict.fromkeys(self._heard, asyncio.get_running_loop().time())

    async def _give_up(self, numbers: Sequence[int]) -> None:
        given_up = [self._readings.pop(number) for number in numbers if number in self._readings]
        tasks = [reading.task for reading in given_up if reading.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._gathered.drop(numbers)
        for number in numbers:
            self._fresh.pop(number, None)

    async def _call(self, call: StreamCall, sampling: SamplingParams, model: str) -> dict[int, Streamed]:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=self.deadline_seconds)
            self._session = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
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
        """Raises what a request met, or EngineDied for a server that is silent."""
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
        reading = self._readings[number] = _Reading(client)
        asked = logprobs_asked(sampling, self.model_path)
        body = generate_body(model, request, sampling, asked) | self.salt
        reading.task = asyncio.create_task(self._read(number, reading, body, sampling))

    async def _read(
        self, number: int, reading: _Reading, body: dict[str, Any], sampling: SamplingParams
    ) -> None:
        client = reading.client
        assert self._session is not None
        try:
            async for choice in choices(self._session, f"{client.url}/inference/v1/generate", body):
                self._heard[client.url] = asyncio.get_running_loop().time()
                self._keep(number, reading, choice, sampling)
                self._arrived.set()
                if choice["finish_reason"] is not None:
                    return
            raise EngineDied("it ended a request before its last token")
        except (aiohttp.ClientError, OSError, EngineDied) as error:
            client.lost = True
            self._failure = EngineDied(f"{client.url}: {str(error) or type(error).__name__}")
        except EngineError as error:
            self._failure = error
        finally:
            if self._readings.get(number) is reading:
                del self._readings[number]
            self._arrived.set()

    def _keep(self, number: int, reading: _Reading, choice: dict[str, Any], sampling: SamplingParams) -> None:
        reason, tokens = choice["finish_reason"], choice["token_ids"]
        if reason not in (None, "stop", "length"):
            raise EngineDied(f"a request ended with {reason!r}")
        content = (choice["logprobs"] or {}).get("content") or []
        places = (
            [(each["token_id"], each["logprob"]) for each in token["top_logprobs"]] for token in content
        )
        own = [token["logprob"] for token in content]
        made = generation_of(tokens, own, reason, sampling, self.version, places)
        self._gathered.add(number, made.segment, made.finish if reason else None)
        self._fresh[number] += len(tokens)
        reading.versions += [self.version] * len(tokens)
        if reason is not None:
            check_spans(reading.versions, choice["weight_versions"])


def generate_body(
    model: str, request: GenerationRequest, sampling: SamplingParams, logprobs: int = 0
) -> dict[str, Any]:
    """Body of `/inference/v1/generate` for one request, whose tokens come one by one."""
    return {
        "model": model,
        "token_ids": request.token_ids.tolist(),
        "stream": True,
        "sampling_params": sampling_fields(request, sampling, logprobs) | {"detokenize": False},
    }


def sampling_fields(request: GenerationRequest, sampling: SamplingParams, logprobs: int) -> dict[str, Any]:
    """All that shapes the distribution, of either body: a server has its own defaults."""
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


async def choices(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any]
) -> AsyncIterator[dict[str, Any]]:
    """What a server sends of a request, part by part. Raises EngineError for a refused request, EngineDied
    when the server fails.
    """
    async with session.post(url, json=body) as response:
        await check_answer(response, url)
        async for line in response.content:
            text = line.removeprefix(b"data:").strip()
            if not text or text == b"[DONE]":
                continue
            part = json.loads(text)
            if "error" in part:
                raise EngineDied(error_message(text, response.status))
            for choice in part["choices"]:
                yield choice


async def check_answer(response: aiohttp.ClientResponse, url: str) -> None:
    """Raises EngineError for a refused request, EngineDied when the server fails."""
    if response.status == 200:
        return
    reason = error_message(await response.read(), response.status)
    raise EngineError(f"{url} refused a request: {reason}") if response.status < 500 else EngineDied(reason)


def check_spans(versions: Sequence[int], spans: Sequence[dict[str, Any]] | None) -> None:
    """Raises EngineError unless vLLM's own spans of versions say what the tokens' versions do."""
    ours = [(str(version), len(list(each))) for version, each in groupby(versions)]
    theirs = [(span["version"], span["end"] - span["start"]) for span in spans or ()]
    if ours != theirs:
        raise EngineError(
            f"vLLM says that a response has tokens of versions {theirs}, they arrived as {ours} (version, "
            "number of tokens): they are labelled wrongly; does another program change the server's weights?"
        )
