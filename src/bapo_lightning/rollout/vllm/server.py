"""vLLM in processes of its own: one or several HTTP servers, given by URL or started and restarted by this
engine on this machine.

Each prompt's samples go to one server, whose prefix cache then computes the prompt once. Weights go through a
`WeightTransport`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import aiohttp

from bapo_lightning.errors import ConfigError, EngineError
from bapo_lightning.rollout.engine import (
    UNSYNCED_VERSION,
    EngineDied,
    Generation,
    GenerationRequest,
    SamplingParams,
    WeightSource,
    check_synced,
)
from bapo_lightning.rollout.vllm.http import ServerClient, error_message
from bapo_lightning.rollout.vllm.local import require_vllm
from bapo_lightning.rollout.vllm.options import VLLMOptions, check_lengths, generation_of
from bapo_lightning.rollout.vllm.server_process import ServerProcess, own_servers
from bapo_lightning.rollout.weight_transport import WeightTransport

TOKENS_COUNTER = "vllm:generation_tokens_total"


class VLLMServerEngine:
    """A client of vLLM servers. Tensor and data parallelism within a server are the server's business."""

    runs_in = "server"

    def __init__(
        self,
        model_path: str,
        options: VLLMOptions,
        transport: WeightTransport,
        log_folder: str,
        urls: Sequence[str] = (),
        num_servers: int = 1,
        cpu_threads: int | None = None,
        gpus: Sequence[str] = (),
        start_seconds: float = 900,
        deadline_seconds: float = 300,
    ) -> None:
        """
        Args:
            model_path: Hugging Face folder or hub name, for servers started here.
            options: of vLLM, for servers started here; `max_model_len` is checked of others.
            transport: how weights get there.
            log_folder: where servers started here write their output.
            urls: servers that run already; empty starts some.
            num_servers: to start.
            cpu_threads: of a server on a CPU; None shares the cores out.
            gpus: of each server, such as "4,5"; not the trainer's. Empty leaves it to vLLM, which takes the
                first ones.
            start_seconds: a server must answer within this time of its start.
            deadline_seconds: a server that generates nothing, or does not answer a control call, for so long
                is taken for dead.

        Raises:
            ConfigError: vLLM is not installed, or a server of `urls` cannot be reached or serves sequences
                that are too short.
        """
        self._options = options
        self._transport = transport
        self._start_seconds = start_seconds
        self._deadline_seconds = deadline_seconds
        self._version = UNSYNCED_VERSION
        self._model_name = ""
        if urls:
            self._processes: list[ServerProcess] = []
        else:
            require_vllm()
            self._processes = own_servers(
                model_path, options, transport.backend, log_folder, num_servers, cpu_threads, gpus
            )
        self._clients = [
            ServerClient(url, deadline_seconds)
            for url in urls or [process.url for process in self._processes]
        ]
        self._connected: dict[str, str] = {}  # weight version that each server was given
        if urls:
            self._check_given_servers()

    @property
    def version(self) -> int:
        """Policy version of the weights held by all servers."""
        return self._version

    @property
    def server_pids(self) -> list[int]:
        """Processes of the servers started here that are up."""
        return [process.pid for process in self._processes if process.pid is not None]

    def generate(self, requests: Sequence[GenerationRequest], sampling: SamplingParams) -> list[Generation]:
        """See `RolloutEngine.generate`."""
        check_synced(self._version)
        check_lengths(requests, self._options.max_model_len)
        for client in self._clients:
            self._check_holds(client, str(self._version))
        finished, reasons = asyncio.run(self._generate(requests, sampling))
        if reasons:
            self._version = UNSYNCED_VERSION
            raise EngineDied("; ".join(reasons), finished)
        return [finished[place] for place in range(len(requests))]

    def load_weights(self, source: WeightSource, version: int) -> None:
        """See `RolloutEngine.load_weights`."""
        self._version = UNSYNCED_VERSION
        self._start()
        for client in self._clients:
            if client.url in self._connected:  # one that somebody started anew meanwhile counts as dead
                self._check_holds(client, self._connected[client.url])
            else:
                self._transport.connect(client, source)
        self._connected.clear()
        self._transport.send(source, self._clients, version)
        for client in self._clients:
            client.reset_prefix_cache()
            self._check_holds(client, str(version))
            self._connected[client.url] = str(version)
        self._model_name = self._clients[0].model()[0]
        self._version = version

    def sleep(self) -> None:
        """Nothing: servers have devices of their own."""

    def restart(self) -> None:
        """Start dead servers anew, or wait until others have started them."""
        self._version = UNSYNCED_VERSION
        for client in self._clients:
            if client.lost or not client.is_healthy():
                self._connected.pop(client.url, None)
            client.lost = False
        for process in self._processes:
            if process.url not in self._connected:
                process.stop()
        self._start()

    def close(self) -> None:
        """End the servers that were started here."""
        self._version = UNSYNCED_VERSION
        for process in self._processes:
            process.stop()

    def _check_holds(self, client: ServerClient, version: str) -> None:
        """Raises EngineDied unless the server holds the weights it was given: one that was started anew holds
        none of ours.
        """
        held = client.weight_version()
        if held != version:
            client.lost = True
            raise EngineDied(
                f"{client.url} holds weights of version {held!r}, version {version} was sent: it was started "
                "anew"
            )

    def _start(self) -> None:
        """Servers of our own start side by side; others are waited for."""
        if self._processes:
            down = [process for process in self._processes if not process.is_running()]
            if down:
                with ThreadPoolExecutor(len(down)) as pool:
                    list(pool.map(lambda process: process.start(self._start_seconds), down))
        else:
            for client in self._clients:
                wait_until_healthy(client, self._start_seconds)

    def _check_given_servers(self) -> None:
        complaints = []
        for client in self._clients:
            try:
                _, max_model_len = client.model()
            except EngineError as error:
                complaints.append(
                    f"rollout.engine.urls: no vLLM server answers at {client.url} ({error}); start one: make "
                    "serve"
                )
                continue
            if max_model_len < self._options.max_model_len:
                complaints.append(
                    f"rollout.engine.urls: {client.url} serves at most {max_model_len} tokens, prompt and "
                    f"response need {self._options.max_model_len}; start it with at least that "
                    "--max-model-len, or lower scale.max_new_tokens"
                )
        if complaints:
            raise ConfigError(complaints)

    async def _generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams
    ) -> tuple[dict[int, Generation], list[str]]:
        """What was finished, by place, and why the servers that died did."""
        finished: dict[int, Generation] = {}
        bounds = [len(requests) * server // len(self._clients) for server in range(len(self._clients) + 1)]
        shares = [range(first, last) for first, last in pairwise(bounds)]  # neighbours have the same prompt
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._deadline_seconds)
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
            runs = [
                self._generate_on(
                    session, client, {place: requests[place] for place in share}, sampling, finished
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
        """Generate one server's share into `finished`; returns the reason when the server is lost."""

        async def one(place: int) -> None:
            body = completion_body(self._model_name, requests[place], sampling)
            finished[place] = generation_from(
                await post(session, f"{client.url}/v1/completions", body), sampling, self._version
            )

        everything: asyncio.Future[Any] = asyncio.gather(*(one(place) for place in requests))
        watch: asyncio.Future[Any] = asyncio.create_task(
            watch_progress(session, client.url, self._deadline_seconds)
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


def completion_body(model: str, request: GenerationRequest, sampling: SamplingParams) -> dict[str, Any]:
    """Body of `/v1/completions`. Everything that shapes the distribution is said: a server may have defaults
    of its own.
    """
    return {
        "model": model,
        "prompt": request.token_ids.tolist(),
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
        "logprobs": 0,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }


def generation_from(answer: dict[str, Any], sampling: SamplingParams, version: int) -> Generation:
    """Our record of the server's answer. Raises EngineDied for a request that ended in no regular way."""
    choice = answer["choices"][0]
    if choice["finish_reason"] not in ("stop", "length"):
        raise EngineDied(f"a request ended with {choice['finish_reason']!r}")
    return generation_of(
        choice["token_ids"], choice["logprobs"]["token_logprobs"], choice["finish_reason"], sampling, version
    )


async def post(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> dict[str, Any]:
    """POST JSON. Raises EngineError for a request that the server refuses, EngineDied when the server itself
    fails.
    """
    async with session.post(url, json=body) as response:
        if response.status == 200:
            return dict(await response.json())
        reason = error_message(await response.read(), response.status)
    raise EngineError(f"{url} refused a request: {reason}") if response.status < 500 else EngineDied(reason)


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


def wait_until_healthy(client: ServerClient, deadline_seconds: float) -> None:
    """Wait for a server that somebody else starts. Raises EngineError when it does not come."""
    give_up = time.monotonic() + deadline_seconds
    while not client.is_healthy():
        if time.monotonic() > give_up:
            raise EngineError(
                f"{client.url} did not come back within {deadline_seconds:.0f} s; start it again: make serve"
            )
        time.sleep(0.5)
