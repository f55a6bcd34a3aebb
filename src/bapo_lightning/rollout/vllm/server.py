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
from itertools import pairwise, zip_longest
from typing import Annotated, Any, ClassVar

from bapo_lightning.rollout.engine import (
    UNSYNCED_VERSION,
    Content,
    EngineDied,
    Generation,
    GenerationRequest,
    RolloutEngine,
    RunsIn,
    SamplingParams,
    StreamCall,
    Streamed,
    Wanted,
    WeightSource,
    check_synced,
)
from bapo_lightning.rollout.vllm.answers import (
    MOST,
    TEMPERATURES,
    CompletionAnswer,
    check_generation,
    checked_places,
    generation_of,
    most_bytes,
    named_tokens,
    num_logprobs,
)
from bapo_lightning.rollout.vllm.http import ServerClient, is_refusal, named, tokens_generated
from bapo_lightning.rollout.vllm.local import require_vllm, start_problems
from bapo_lightning.rollout.vllm.options import ADAPTER, VLLMOptions, check_lengths, num_gpus
from bapo_lightning.rollout.vllm.server_process import ServerProcess, local_servers
from bapo_lightning.rollout.vllm.server_stream import ServerStream, sampling_fields
from bapo_lightning.rollout.weight_digests import added
from bapo_lightning.rollout.weight_transport import WeightTransport
from bapo_lightning.system.errors import ConfigError, EngineError
from bapo_lightning.system.peers import PeerFault
from bapo_lightning.system.peers.loop import run
from bapo_lightning.system.peers.wire import Wire
from bapo_lightning.system.phases import advance, phase
from bapo_lightning.system.pretrained import longest_short, read_model_config
from bapo_lightning.system.values import Advice, Seconds, Workers, is_http_address

OTHERS = 10  # times the tokens we requested that a server may generate, since others may use it, too


@dataclass(eq=False)
class VLLMServerEngine(RolloutEngine):
    """A client of vLLM servers, which may use any tensor and data parallelism."""

    runs_in: ClassVar[RunsIn] = "server"
    streams: ClassVar[bool] = True
    most_candidates: ClassVar[int] = MOST
    temperatures: ClassVar[tuple[float, float]] = TEMPERATURES
    model_path: str  # Hugging Face folder or hub name, for servers started here
    options: VLLMOptions  # for servers started here; other servers' `max_model_len` is checked
    transport: WeightTransport
    log_folder: str  # for the output of servers started here
    urls: Sequence[str] = ()  # of servers that already run; empty: start servers
    num_servers: Workers = 1  # number to start
    cpu_threads: Workers | None = None  # of a server on a CPU; None divides the cores
    # GPUs of each server, such as "4,5"; not the trainer's. Empty only on machines without GPUs.
    gpus: Annotated[Sequence[str], Advice("is a list of texts; write e.g. ['4,5','6,7']")] = ()
    start_seconds: Seconds = 900  # a server must answer within this time of its start
    # A server that generates nothing, or does not answer a control call, for this long counts as dead.
    deadline_seconds: Seconds = 300
    _model_name: str = field(default="", init=False)
    _processes: list[ServerProcess] = field(default_factory=list, init=False)
    # weight version that each server was given
    _connected: dict[str, str] = field(default_factory=dict, init=False)
    _closed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        """Raises ConfigError if vLLM is missing, or if a server of `urls` does not suffice."""
        if not self.urls:
            require_vllm()
            self._processes = local_servers(
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
        """Yields conflicts between options."""
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
                yield f"urls: {url} is not a URL; write e.g. urls=[http://127.0.0.1:8000]"

    @staticmethod
    def machine_problems(options: Mapping[str, Any], run: object = None) -> Iterator[str]:
        """Yields parts missing on this machine to start servers."""
        if not options["urls"]:
            yield from start_problems()

    @property
    def _adapts(self) -> bool:
        """Whether servers apply adapters, which vLLM's own weight transfer does not send."""
        return self.options.lora_rank is not None and self.transport.backend is None

    def generate(self, requests: Sequence[GenerationRequest], sampling: SamplingParams) -> list[Generation]:
        """Samples on all servers at once."""
        check_synced(self.version)
        check_lengths(requests, self.options.context_length)
        for client in self._clients:
            self._check_holds(client, str(self.version))
        finished, reasons = run(self._generate(requests, sampling))
        if reasons:
            self.version = UNSYNCED_VERSION
            raise EngineDied("; ".join(reasons), finished)
        return [finished[number] for number in range(len(requests))]

    def stream(self, call: StreamCall, sampling: SamplingParams) -> dict[int, Streamed]:
        """Returns tokens since the last call, after `call.steps` of a request; servers keep sampling."""
        check_synced(self.version)
        check_lengths(list(call.begun.values()), self.options.context_length)
        try:
            for client in self._clients:
                if call.begun and not self._stream.is_running(client):  # else its end would show
                    self._check_holds(client, str(self.version))
            return self._stream.call(call, sampling, self._model_name)
        except BaseException as error:
            if isinstance(error, EngineDied):
                self.version = UNSYNCED_VERSION
            self._stream.forget()
            raise

    def load_weights(self, source: WeightSource, version: int) -> None:
        """Sends all weights to all servers, between two steps of a stream; the first weights start the
        servers. Raises EngineDied for servers that have ended since.
        """
        self.version = UNSYNCED_VERSION
        self._check_running()
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
            if client.url in self._connected:  # a server that was restarted meanwhile counts as dead
                # It already holds the new version if another server died during an earlier attempt.
                self._check_holds(client, self._connected[client.url], str(version))
            else:
                self.transport.connect(client, source, Wanted(dtype=dtype, names="files"))
                content = "split" if self._adapts else "merged"
        self.transport.send(source, self._clients, version, Wanted(content, dtype, "files"))
        for client in self._clients:
            self._check_holds(client, str(version))
            self._connected[client.url] = str(version)
        self._model_name = ADAPTER if self._adapts else self._clients[0].model()[0]
        self._stream.go_on(version)

    def weight_digests(self, seed: int) -> dict[int, dict[str, int]]:
        """Returns digests of the weights that each server holds."""
        digests = [client.call_workers("weight_digests", seed) for client in self._clients]
        return {number: added(parts) for number, parts in enumerate(digests)}

    def restart(self) -> None:
        """Restarts only the lost servers, or waits until their owners have restarted them."""
        self.version = UNSYNCED_VERSION
        self._stream.forget()
        for client, process in zip_longest(self._clients, self._processes):
            if client.lost:
                self._connected.pop(client.url, None)
                if process is not None:
                    process.stop()
            client.lost = False
        self._start()

    def close(self) -> None:
        """Ends the servers that were started here, and requests on other servers."""
        self._closed = True
        self.version = UNSYNCED_VERSION
        self._stream.close()
        for process in self._processes:
            process.stop()

    def _check_holds(self, client: ServerClient, *versions: str) -> None:
        """Raises EngineDied unless the server holds weights that were sent; restarted servers hold none."""
        held = client.weight_version()
        if held not in versions:
            client.lost = True
            raise EngineDied(
                f"{client.url} holds weights of version {held!r}, but version {versions[0]} was sent: the "
                "server was restarted"
            )

    def _check_running(self) -> None:
        """Raises EngineDied for servers whose processes have ended since they were started here."""
        ends = []
        for client, process in zip(self._clients, self._processes, strict=False):
            if end := process.end():
                client.lost = True
                ends.append(f"{client.url}: {end}; its output is in {process.log}")
        if ends:
            raise EngineDied("; ".join(ends))

    def _start(self) -> None:
        if self._processes:
            down = [process for process in self._processes if not process.is_running()]
            if down:
                with phase("starting vLLM"), ThreadPoolExecutor(len(down)) as pool:
                    list(pool.map(self._start_one, down))
        else:
            with phase("waiting for vLLM"):
                for client in self._clients:
                    wait_until_healthy(client, self.start_seconds)

    def _start_one(self, process: ServerProcess) -> None:
        """Starts a server. Raises EngineError if it does not start, or after `close`, even meanwhile."""
        self._connected.pop(process.url, None)
        if not self._closed:
            process.start(self.start_seconds)
        if self._closed:
            process.stop()
            raise EngineError("the engine was closed")

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
            short = longest_short(read_model_config(self.model_path))
            if short is not None and self.options.needed_tokens <= short < max_model_len:
                problems.append(
                    f"rollout.engine.urls: {client.url} serves {max_model_len} tokens, so it uses the long "
                    "factors of the model's rotary embeddings, and the trainer uses the short ones up to "
                    f"{short} tokens of prompt and response; start it with --max-model-len={short}"
                )
        if problems:
            raise ConfigError(problems)

    async def _generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams
    ) -> tuple[dict[int, Generation], list[str]]:
        """Returns the generations by number of their request, and the reasons for servers' deaths."""
        finished: dict[int, Generation] = {}
        bounds = [len(requests) * server // len(self._clients) for server in range(len(self._clients) + 1)]
        shares = [range(first, last) for first, last in pairwise(bounds)]  # neighbours have the same prompt
        async with Wire() as wire:
            runs = [
                self._generate_on(
                    wire, client, {number: requests[number] for number in share}, sampling, finished
                )
                for client, share in zip(self._clients, shares, strict=True)
            ]
            deaths = await asyncio.gather(*runs)
        return finished, [reason for reason in deaths if reason]

    async def _generate_on(
        self,
        wire: Wire,
        client: ServerClient,
        requests: dict[int, GenerationRequest],
        sampling: SamplingParams,
        finished: dict[int, Generation],
    ) -> str | None:
        """Generates one server's share into `finished`; returns the reason if the server is lost."""
        requested, url = num_logprobs(sampling, self.model_path), f"{client.url}/v1/completions"

        async def one(number: int) -> None:
            request = requests[number]
            body = {
                "model": self._model_name,
                "prompt": request.token_ids.tolist(),
                "return_token_ids": True,
                "return_tokens_as_token_ids": True,
                **sampling_fields(request, sampling, requested),
                **self._stream.salt,
            }
            most, seconds = most_bytes(request, requested), self.deadline_seconds
            answer = await wire.ask(CompletionAnswer, url, seconds, body, most, from_its_head=True)
            finished[number] = self._generation(answer, request, sampling)
            advance()

        if not requests:
            return None
        expected = self._stream.expected(client) + sum(each.max_new_tokens for each in requests.values())
        try:
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(watch_progress(client.url, self.deadline_seconds, expected))
                await asyncio.wait([group.create_task(one(number)) for number in requests])
                watch.cancel()
        except* PeerFault as group:
            met = group.exceptions[0]
        else:
            return None
        if is_refusal(met):
            raise EngineError(str(met))
        client.lost = True
        return named(met, client)

    def _generation(
        self, answer: CompletionAnswer, request: GenerationRequest, sampling: SamplingParams
    ) -> Generation:
        """Converts a server's answer. Raises PeerFault for an impossible answer."""
        (choice,) = answer.choices
        logp, places = choice.logprobs.token_logprobs, choice.logprobs.top_logprobs
        check_generation(request, sampling, self.model_path, 0, choice.token_ids, logp, choice.finish_reason)
        if len(places) != len(logp):
            raise PeerFault(f"{len(logp)} tokens came with candidates for {len(places)}")
        known = checked_places(map(named_tokens, places), self.model_path)
        return generation_of(choice.token_ids, logp, choice.finish_reason, sampling, self.version, known)


def wait_until_healthy(client: ServerClient, deadline_seconds: float) -> None:
    """Waits for a server that is started elsewhere. Raises EngineError if it does not appear."""
    give_up = time.monotonic() + deadline_seconds
    while not client.is_healthy():
        if time.monotonic() > give_up:
            raise EngineError(
                f"{client.url} did not come back within {deadline_seconds:.0f} s; restart it: make serve"
            )
        time.sleep(0.5)


async def watch_progress(url: str, deadline_seconds: float, expected: int) -> None:
    """Raises PeerFault if the server generates nothing for `deadline_seconds`, or so many tokens that the
    `expected` ones must be among them; never returns otherwise.
    """
    first = last = -1.0
    async with Wire() as wire:  # separate, so that it does not wait for a connection of the requests
        while True:
            generated = tokens_generated(await wire.fetch(f"{url}/metrics", deadline_seconds))
            if generated <= last:
                raise PeerFault(f"{url} generated nothing for {deadline_seconds:.0f} s")
            first, last = (generated if first < 0 else first), generated
            if generated - first > OTHERS * expected:
                raise PeerFault(
                    f"{url} reports that it generated {generated - first:.0f} tokens, of which we "
                    f"requested {expected}, and does not send them"
                )
            await asyncio.sleep(deadline_seconds)
