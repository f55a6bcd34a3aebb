"""vLLM behind HTTP: servers given by URL, or started and restarted here. Each prompt's samples go to one
server, whose prefix cache then computes the prompt once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any, ClassVar

import aiohttp

from bapo_lightning.errors import ConfigError, EngineError
from bapo_lightning.phases import advance, phase
from bapo_lightning.rollout.engine import (
    UNSYNCED_VERSION,
    Content,
    EngineDied,
    Generation,
    GenerationRequest,
    RunsIn,
    SamplingParams,
    StreamCall,
    Streamed,
    Wanted,
    WeightSource,
    check_synced,
)
from bapo_lightning.rollout.vllm.answers import MOST, generation_of, logprobs_asked
from bapo_lightning.rollout.vllm.http import ServerClient
from bapo_lightning.rollout.vllm.local import require_vllm
from bapo_lightning.rollout.vllm.options import ADAPTER, VLLMOptions, check_lengths, num_gpus
from bapo_lightning.rollout.vllm.server_process import ServerProcess, own_servers
from bapo_lightning.rollout.vllm.server_stream import ServerStream, check_answer, sampling_fields
from bapo_lightning.rollout.weight_digests import added
from bapo_lightning.rollout.weight_transport import WeightTransport
from bapo_lightning.values import Advice, Seconds, Workers, is_http_address

ID = "token_id:"  # before a token's number, in place of its text
TOKENS_COUNTER = "vllm:generation_tokens_total"


@dataclass(eq=False)
class VLLMServerEngine:
    """A client of vLLM servers. Each server is free in its tensor and data parallelism."""

    runs_in: ClassVar[RunsIn] = "server"
    shares_gpu: ClassVar[bool] = False
    most_noted: ClassVar[int] = MOST
    model_path: str  # Hugging Face folder or hub name, for servers started here
    options: VLLMOptions  # for servers started here; `max_model_len` is checked of others
    transport: WeightTransport
    log_folder: str  # for the output of servers started here
    urls: Sequence[str] = ()  # of servers that run already; empty starts some
    num_servers: Workers = 1  # to start
    cpu_threads: Workers | None = None  # of a server on a CPU; None shares the cores out
    # Of each server, such as "4,5"; not the trainer's. Empty only where there are none.
    gpus: Annotated[Sequence[str], Advice("is a list of texts; write e.g. ['4,5','6,7']")] = ()
    start_seconds: Seconds = 900  # a server must answer within this time of its start
    # A server that generates nothing, or does not answer a control call, for so long counts as dead.
    deadline_seconds: Seconds = 300
    version: int = field(default=UNSYNCED_VERSION, init=False)  # policy version of the weights held
    _model_name: str = field(default="", init=False)
    _processes: list[ServerProcess] = field(default_factory=list, init=False)
    # weight version that each server was given
    _connected: dict[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Raises ConfigError without vLLM, or for a server of `urls` that does not suffice."""
        if not self.urls:
            require_vllm()
            self._processes = own_servers(
                self.model_path,
                self.options,
                self.transport.backend,
                self.log_folder,
                self.num_servers,
                self.cpu_threads,
                self.gpus,
            )
        urls = self.urls or [process.url for process in self._processes]
        self._clients = [ServerClient(url, self.deadline_seconds) for url in urls]
        self._stream = ServerStream(self._clients, self.deadline_seconds, self.model_path)
        if self.urls:
            self._check_given_servers()

    @staticmethod
    def problems(options: Mapping[str, Any]) -> Iterator[str]:
        """Options that do not go together."""
        gpus, num_servers = options.get("gpus", ()), options.get("num_servers", 1)
        if gpus and len(gpus) != num_servers:
            yield (
                f"gpus={list(gpus)} names the GPUs of {len(gpus)} servers, num_servers={num_servers}; write "
                "one entry for each server"
            )
        size = num_gpus(options.get("options") or {})
        for entry in gpus:
            if (named := len(entry.split(","))) != size:
                yield (
                    f"gpus={list(gpus)}: {entry} names {named} for a server that takes {size} "
                    "(options.tensor_parallel_size); write one number for each, with commas between them"
                )
        for url in options.get("urls", ()):
            if not is_http_address(url):
                yield f"urls: {url} is no URL; write e.g. urls=[http://127.0.0.1:8000]"

    @property
    def _adapts(self) -> bool:
        """Whether servers apply adapters, which vLLM's own weight transfer does not bring."""
        return self.options.lora_rank is not None and self.transport.backend is None

    def generate(self, requests: Sequence[GenerationRequest], sampling: SamplingParams) -> list[Generation]:
        """Samples on all servers at once."""
        check_synced(self.version)
        check_lengths(requests, self.options.context_length)
        for client in self._clients:
            self._check_holds(client, str(self.version))
        finished, reasons = asyncio.run(self._generate(requests, sampling))
        if reasons:
            self.version = UNSYNCED_VERSION
            raise EngineDied("; ".join(reasons), finished)
        return [finished[number] for number in range(len(requests))]

    def stream(self, call: StreamCall, sampling: SamplingParams) -> dict[int, Streamed]:
        """What arrived since the last call, after `call.steps` tokens of a request; servers sample on."""
        check_synced(self.version)
        check_lengths(list(call.begun.values()), self.options.context_length)
        try:
            for client in self._clients:
                if call.begun and not self._stream.is_running(client):  # else its end would show
                    self._check_holds(client, str(self.version))
            return self._stream.call(call, sampling, self._model_name)
        except EngineDied:
            self.version = UNSYNCED_VERSION
            self._stream.forget()
            raise

    def load_weights(self, source: WeightSource, version: int) -> None:
        """Starts servers that are down and sends all weights to all, between two steps of a stream."""
        self.version = UNSYNCED_VERSION
        self._start()
        self._stream.pause()
        try:
            self._load(source, version)
        except BaseException:
            with suppress(EngineError):  # the first error has the reason
                self._stream.resume()
            raise
        self.version = version

    def _load(self, source: WeightSource, version: int) -> None:
        content: Content = "adapters" if self._adapts else "merged"
        dtype = self.options.held_dtype
        for client in self._clients:
            if client.url in self._connected:  # a server that was started anew meanwhile counts as dead
                self._check_holds(client, self._connected[client.url])
            else:
                self.transport.connect(client, source, Wanted(dtype=dtype, names="files"))
                content = "split" if self._adapts else "merged"
        self._connected.clear()
        self.transport.send(source, self._clients, version, Wanted(content, dtype, "files"))
        for client in self._clients:
            self._check_holds(client, str(version))
            self._connected[client.url] = str(version)
        self._model_name = ADAPTER if self._adapts else self._clients[0].model()[0]
        self._stream.go_on(version)

    def weight_digests(self, seed: int) -> dict[int, dict[str, int]]:
        """Digests of the weights that each server holds."""
        found = [client.call_workers("weight_digests", seed) for client in self._clients]
        return {number: added(parts) for number, parts in enumerate(found)}

    def sleep(self) -> None:
        """Does nothing: servers have devices of their own."""

    def restart(self) -> None:
        """Starts dead servers anew, or waits until their owners have."""
        self.version = UNSYNCED_VERSION
        self._stream.forget()
        for client in self._clients:
            if client.lost or not client.is_healthy():
                self._connected.pop(client.url, None)
            client.lost = False
        for process in self._processes:
            if process.url not in self._connected:
                process.stop()
        self._start()

    def close(self) -> None:
        """Ends the servers that were started here, and requests on others."""
        self.version = UNSYNCED_VERSION
        self._stream.close()
        for process in self._processes:
            process.stop()

    def _check_holds(self, client: ServerClient, version: str) -> None:
        """Raises EngineDied unless the server holds what it was given: a restarted one holds nothing."""
        held = client.weight_version()
        if held != version:
            client.lost = True
            raise EngineDied(
                f"{client.url} holds weights of version {held!r}, version {version} was sent: it was started "
                "anew"
            )

    def _start(self) -> None:
        if self._processes:
            down = [process for process in self._processes if not process.is_running()]
            if down:
                with phase("starting vLLM"), ThreadPoolExecutor(len(down)) as pool:
                    list(pool.map(lambda process: process.start(self.start_seconds), down))
        else:
            with phase("waiting for vLLM"):
                for client in self._clients:
                    wait_until_healthy(client, self.start_seconds)

    def _check_given_servers(self) -> None:
        problems = []
        for client in self._clients:
            try:
                _, max_model_len = client.model()
            except EngineError as error:
                problems.append(
                    f"rollout.engine.urls: no vLLM server answers at {client.url} ({error}); start one: make "
                    "serve"
                )
                continue
            if max_model_len < self.options.context_length:
                problems.append(
                    f"rollout.engine.urls: {client.url} serves at most {max_model_len} tokens, prompt and "
                    f"response need {self.options.context_length}; start it with at least that "
                    "--max-model-len, or lower scale.max_new_tokens"
                )
        if problems:
            raise ConfigError(problems)

    async def _generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams
    ) -> tuple[dict[int, Generation], list[str]]:
        """Returns the generations by number of their request, and why servers died."""
        finished: dict[int, Generation] = {}
        bounds = [len(requests) * server // len(self._clients) for server in range(len(self._clients) + 1)]
        shares = [range(first, last) for first, last in pairwise(bounds)]  # neighbours have the same prompt
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self.deadline_seconds)
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
            runs = [
                self._generate_on(
                    session, client, {number: requests[number] for number in share}, sampling, finished
                )
                for client, share in zip(self._clients, shares, strict=True)
            ]
            deaths = await asyncio.gather(*runs)
        return finished, [reason for reason in deaths if reason]

    async def _generate_on(
        self,
        session: aiohttp.ClientSession,
        client: ServerClient,
        requests: dict[int, GenerationRequest],
        sampling: SamplingParams,
        finished: dict[int, Generation],
    ) -> str | None:
        """Generates one server's share into `finished`; returns the reason when the server is lost."""
        asked = logprobs_asked(sampling, self.model_path)

        async def one(number: int) -> None:
            body = completion_body(self._model_name, requests[number], sampling, asked) | self._stream.salt
            finished[number] = generation_from(
                await post(session, f"{client.url}/v1/completions", body), sampling, self.version
            )
            advance()

        everything: asyncio.Future[Any] = asyncio.gather(*(one(number) for number in requests))
        watch: asyncio.Future[Any] = asyncio.create_task(
            watch_progress(session, client.url, self.deadline_seconds)
        )
        try:
            await asyncio.wait({everything, watch}, return_when=asyncio.FIRST_COMPLETED)
            if everything.done():
                everything.result()
            else:
                watch.result()
        except (aiohttp.ClientError, OSError, EngineDied) as error:
            client.lost = True
            return f"{client.url}: {str(error) or type(error).__name__}"
        finally:
            everything.cancel()
            watch.cancel()
            await asyncio.gather(everything, watch, return_exceptions=True)
        return None


def wait_until_healthy(client: ServerClient, deadline_seconds: float) -> None:
    """Waits for a server that is started elsewhere. Raises EngineError when it does not come."""
    give_up = time.monotonic() + deadline_seconds
    while not client.is_healthy():
        if time.monotonic() > give_up:
            raise EngineError(
                f"{client.url} did not come back within {deadline_seconds:.0f} s; start it again: make serve"
            )
        time.sleep(0.5)


def completion_body(
    model: str, request: GenerationRequest, sampling: SamplingParams, logprobs: int = 0
) -> dict[str, Any]:
    """Body of `/v1/completions`."""
    return {
        "model": model,
        "prompt": request.token_ids.tolist(),
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        **sampling_fields(request, sampling, logprobs),
    }


def generation_from(answer: dict[str, Any], sampling: SamplingParams, version: int) -> Generation:
    """Converts a server's answer. Raises EngineDied for a request that ended in no regular way."""
    choice = answer["choices"][0]
    if choice["finish_reason"] not in ("stop", "length"):
        raise EngineDied(f"a request ended with {choice['finish_reason']!r}")
    known = choice["logprobs"]
    places = (
        [(int(name.removeprefix(ID)), value) for name, value in place.items()]
        for place in known["top_logprobs"]
    )
    return generation_of(
        choice["token_ids"], known["token_logprobs"], choice["finish_reason"], sampling, version, places
    )


async def post(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> dict[str, Any]:
    """Posts JSON. Raises EngineError for a refused request, EngineDied when the server fails."""
    async with session.post(url, json=body) as response:
        await check_answer(response, url)
        return dict(await response.json())


async def watch_progress(session: aiohttp.ClientSession, url: str, deadline_seconds: float) -> None:
    """Raises EngineDied when the server generates nothing for so long; never returns otherwise."""
    last = -1.0
    while True:
        try:
            async with asyncio.timeout(deadline_seconds), session.get(f"{url}/metrics") as response:
                generated = tokens_generated(await response.text())
        except TimeoutError:
            raise EngineDied(f"it did not answer within {deadline_seconds:.0f} s") from None
        if generated == last:
            raise EngineDied(f"it generated nothing for {deadline_seconds:.0f} s")
        last = generated
        await asyncio.sleep(deadline_seconds)


def tokens_generated(metrics: str) -> float:
    """Sum of vLLM's token counters in its Prometheus text."""
    return sum(
        float(line.rsplit(" ", 1)[1]) for line in metrics.splitlines() if line.startswith(TOKENS_COUNTER)
    )
