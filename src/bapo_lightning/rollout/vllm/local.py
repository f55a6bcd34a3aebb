"""vLLM inside the training process: a plain engine on a CPU, on GPUs one engine per trainer rank or
tensor-parallel group of ranks (SPMD). In the process of a `ChildEngine` or of a fleet, a tensor-parallel
engine has worker processes and gets its weights through shared memory.
"""

from __future__ import annotations

import logging
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from bapo_lightning.rollout.engine import (
    UNSYNCED_VERSION,
    Content,
    EngineDied,
    Generation,
    GenerationRequest,
    RolloutEngine,
    SamplingParams,
    StreamCall,
    Streamed,
    Wanted,
    WeightSource,
    check_synced,
)
from bapo_lightning.rollout.vllm.answers import MOST, TEMPERATURES, generation_of_output, num_logprobs
from bapo_lightning.rollout.vllm.containment import (
    Containment,
    Deadline,
    default_group_kept,
    shared_memory_of_this_run,
    transformers_classes_kept,
)
from bapo_lightning.rollout.vllm.options import (
    ADAPTER,
    ADAPTER_NUMBER,
    LOADING_ERRORS,
    VLLMOptions,
    cache_named,
    check_lengths,
    reason_of,
)
from bapo_lightning.rollout.vllm.streamed import StreamedRequests, settle
from bapo_lightning.rollout.weight_digests import added
from bapo_lightning.rollout.weight_transport import send_parts
from bapo_lightning.system.errors import ConfigError, EngineError, first_line
from bapo_lightning.system.host import missing_to_build
from bapo_lightning.system.phases import advance, phase
from bapo_lightning.system.values import Seconds

PART_MEGABYTES = 64  # size of the parts of the weights for worker processes


@dataclass(eq=False)
class VLLMLocalEngine(RolloutEngine):
    """vLLM in this process, started with the first weights. Ranks of one tensor-parallel group get the same
    requests.
    """

    shares_gpu: ClassVar[bool] = True
    streams: ClassVar[bool] = True
    most_candidates: ClassVar[int] = MOST
    temperatures: ClassVar[tuple[float, float]] = TEMPERATURES
    model_path: str  # Hugging Face folder or hub name; only its config is read, weights come from the trainer
    options: VLLMOptions
    deadline_seconds: Seconds = 600  # without progress, after which the process prints all stacks and ends
    start_seconds: Seconds = 1800  # the same for vLLM's start, which may compile and capture graphs
    _llm: Any = field(default=None, init=False)
    _asleep: bool = field(default=False, init=False)
    _can_sleep: bool = field(default=False, init=False)
    _has_base: bool = field(default=False, init=False)  # the weights under the adapters
    _has_workers: bool = field(default=False, init=False)  # vLLM has child processes
    _num_calls: int = field(default=0, init=False)
    _streamed: StreamedRequests = field(default_factory=StreamedRequests, init=False)
    _owns_default_group: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        """Raises ConfigError if vLLM is not installed."""
        require_vllm()
        self._deadline = Deadline(self.deadline_seconds)
        environment = {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_NO_USAGE_STATS": "1",
            # For worker processes. vLLM's own choice gives each its cores and reserves one, which small
            # machines do not have; a fork of a process with threads may hang.
            "VLLM_CPU_OMP_THREADS_BIND": os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
            "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        }
        self._contained = Containment(environment, eager=False)

    @staticmethod
    def machine_problems(options: Mapping[str, Any], run: object = None) -> Iterator[str]:
        """Yields a message if vLLM needs a compiler on this machine's GPU and it is missing."""
        yield from start_problems()

    def generate(self, requests: Sequence[GenerationRequest], sampling: SamplingParams) -> list[Generation]:
        """Samples through vLLM, step by step."""
        check_synced(self.version)
        check_lengths(requests, self.options.context_length)
        with self._contained(), self._deadline(), self._workers_watched():
            return self._generate(requests, sampling)

    def stream(self, call: StreamCall, sampling: SamplingParams) -> dict[int, Streamed]:
        """Makes steps of vLLM's own loop, in which its scheduler admits and releases requests."""
        check_synced(self.version)
        check_lengths(list(call.begun.values()), self.options.context_length)
        with self._contained(), self._deadline(), self._workers_watched():
            self._streamed.stale_context, self._streamed.sampling = call.context, sampling
            self._streamed.give_up(self._llm.llm_engine, call.given_up)
            try:
                for number, request in call.begun.items():
                    self._add(self._streamed.name(number), request, sampling, delta=True)
                for _ in range(call.steps):
                    if not self._streamed.is_running:
                        break
                    self._step()
                settle(self._llm.llm_engine, self._step)
            except BaseException:
                with suppress(Exception):  # the first error has the reason
                    self._streamed.give_up(self._llm.llm_engine, list(call.begun))
                raise
        return self._streamed.take()

    @property
    def wanted(self) -> Wanted:
        """Form in which the engine takes all weights."""
        content: Content = "merged" if self.options.lora_rank is None else "split"
        return Wanted(content, self.options.held_dtype, "files")

    def load_weights(self, source: WeightSource, version: int) -> None:
        """Wakes or starts vLLM, and streams all weights."""
        if self._llm is None:
            with Deadline(self.start_seconds)():
                try:
                    self._start()
                except EngineError:
                    self.close()
                    raise
        with self._deadline():
            self.version = UNSYNCED_VERSION
            with self._contained(), self._workers_watched():
                if self._asleep:
                    self._llm.wake_up(tags=["weights"])
                try:
                    self._take(source)
                except EngineError:
                    raise
                except LOADING_ERRORS as error:
                    raise EngineError(
                        f"vLLM did not take the trainer's weights ({type(error).__name__}: {error})"
                    ) from error
                if self._asleep:
                    self._llm.wake_up(tags=["kv_cache"])
                self._asleep = False
                self._streamed.forget_stale(self._llm)
        self.version = version

    def weight_digests(self, seed: int) -> dict[int, dict[str, int]]:
        """Returns digests of the weights that vLLM holds; of this rank's part if ranks share the engine."""
        with self._deadline(), self._contained(), self._workers_watched():
            return {0: added(self._call_workers("weight_digests", seed))}

    def sleep(self) -> None:
        """Drops weights and cache on a GPU. The version is then unset, so that weights are sent again before
        the next use. Does nothing while a stream needs both.
        """
        if self._llm is None or self._asleep or not self._can_sleep or self._streamed.is_running:
            return
        with self._contained():
            # Weights under adapters are sent once, so they are kept in the host's memory.
            self._llm.sleep(level=1 if self._has_base else 2)
        self._asleep = True
        self.version = UNSYNCED_VERSION

    def restart(self) -> None:
        """Raises EngineError, since its process is the trainer's."""
        raise EngineError(
            "an engine inside the training process cannot be restarted; rollout=vllm_server has a "
            "separate process"
        )

    def close(self) -> None:
        """Shuts down vLLM; a process group that existed before it stays."""
        llm, self._llm = self._llm, None
        self._streamed = StreamedRequests()
        self.version = UNSYNCED_VERSION
        if llm is None:
            return
        with self._contained(), nullcontext() if self._owns_default_group else default_group_kept():
            llm.llm_engine.engine_core.shutdown()

    @phase("starting vLLM")
    def _start(self) -> None:
        logging.getLogger("vllm").setLevel(logging.ERROR)  # before vLLM reads its own variable for it
        with self._contained():
            from vllm import LLM
            from vllm.platforms import current_platform

            on_cpu = current_platform.is_cpu()
            if on_cpu and torch.cpu._is_amx_tile_supported():
                torch.cpu._init_amx()  # vLLM's attention takes for granted that the process may use tiles
            arguments = self.options.engine_arguments(self.model_path, on_cpu) | {"disable_log_stats": True}
            self._can_sleep = arguments["enable_sleep_mode"] = not on_cpu
            self._owns_default_group = not dist.is_initialized()
            in_ranks = dist.is_initialized() and dist.get_world_size() > 1
            if in_ranks:
                os.environ |= {"RANK": str(dist.get_rank()), "WORLD_SIZE": str(dist.get_world_size())}
                # vLLM's external launcher also reads these; Lightning does not set all of them.
                os.environ.setdefault("LOCAL_RANK", str(dist.get_rank()))
                os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
                os.environ.setdefault("MASTER_PORT", "0")
                arguments |= {
                    "distributed_executor_backend": "external_launcher",
                    "seed": dist.get_rank() // self.options.tensor_parallel_size,
                }
            elif self.options.tensor_parallel_size > 1 and arguments["enforce_eager"]:
                os.environ["TORCHDYNAMO_DISABLE"] = "1"  # for worker processes; this one uses a stance
            try:
                with (
                    transformers_classes_kept(arguments["enforce_eager"]),
                    shared_memory_of_this_run() if in_ranks and on_cpu else nullcontext(),
                ):
                    self._llm = LLM(**arguments)
            except Exception as error:
                raise self._not_started(error, "kv_cache_memory_bytes" in arguments) from error
        parallel = self._llm.llm_engine.vllm_config.parallel_config
        self._has_workers = parallel.world_size > 1 and parallel.distributed_executor_backend == "mp"
        self._contained.eager = arguments["enforce_eager"]
        if self._has_workers:
            self._call_workers("end_with_parent")
        self._try_out()

    def _try_out(self) -> None:
        """Makes two steps before there are weights: for some models vLLM starts, but has no kernel on this
        machine, or reads a wrong shape from the configuration.
        """
        probe = GenerationRequest(array("i", [0]), 2, 0)
        with self._contained(), self._workers_watched():
            try:
                self._generate([probe], SamplingParams(1.0, ()))
            except Exception as error:
                raise self._not_started(error) from error

    def _not_started(self, error: Exception, sets_cache: bool = False) -> EngineError:
        reason = cache_named(reason_of(error)) if sets_cache else reason_of(error)
        return EngineError(f"vLLM could not be started for {self.model_path}: {reason}")

    @contextmanager
    def _workers_watched(self) -> Iterator[None]:
        """Replaces any error by EngineDied after the death of a worker process."""
        try:
            yield
        except Exception as error:
            if self._has_workers and self._llm.llm_engine.model_executor.is_failed:
                self.version = UNSYNCED_VERSION
                raise EngineDied(f"a worker process of vLLM ended ({error})") from error
            raise

    def _call_workers(self, method: str, *arguments: Any) -> list[Any]:
        self._deadline.progress()
        return list(self._llm.collective_rpc(method, args=arguments))

    def _generate(self, requests: Sequence[GenerationRequest], sampling: SamplingParams) -> list[Generation]:
        self._num_calls += 1
        names = [f"{self._num_calls}/{number}" for number in range(len(requests))]
        finished: dict[str, Any] = {}
        try:
            for name, request in zip(names, requests, strict=True):
                self._add(name, request, sampling)
            while len(finished) < len(names):
                finished |= {output.request_id: output.outputs[0] for output in self._step()}
        except BaseException:
            with suppress(Exception):  # the first error has the reason
                self._llm.llm_engine.abort_request(names)
            raise
        outputs = [finished[name] for name in names]
        return [generation_of_output(completion, sampling, self.version) for completion in outputs]

    def _add(
        self, name: str, request: GenerationRequest, sampling: SamplingParams, delta: bool = False
    ) -> None:
        from vllm.lora.request import LoRARequest

        # Every worker already has it: the path is never read.
        adapter = LoRARequest(ADAPTER, ADAPTER_NUMBER, ADAPTER) if self._has_base else None
        prompt = {"prompt_token_ids": request.token_ids.tolist()} | self._streamed.salt
        requested = num_logprobs(sampling, self.model_path)
        try:
            parameters = vllm_sampling(request, sampling, requested, delta)
            self._llm.llm_engine.add_request(name, prompt, parameters, lora_request=adapter)
        except Exception as error:
            raise EngineError(f"vLLM refused a request: {first_line(error)}") from error

    def _step(self) -> list[Any]:
        """Makes one step of vLLM. Returns finished outputs; a stream's outputs are kept instead."""
        outputs = self._streamed.kept(self._llm.llm_engine.step(), self.version)
        self._deadline.progress()
        ended = [output for output in outputs if output.finished]
        advance(len(ended))
        return ended

    def _take(self, source: WeightSource) -> None:
        """Loads the weights that vLLM does not have yet: weights under adapters never change."""
        wanted = replace(self.wanted, content="adapters") if self._has_base else self.wanted
        self._has_base = False
        if self._has_workers:
            send_parts(source, PART_MEGABYTES, wanted, self._call_workers)
        else:
            self._call_workers("reload_all", self._watched(source, wanted), wanted.content != "adapters")
        self._has_base = wanted.content != "merged"

    def _watched(self, source: WeightSource, wanted: Wanted) -> Any:
        for name, weight in source.named_weights(wanted):
            self._deadline.progress()
            yield name, weight


def require_vllm() -> None:
    """Raises ConfigError unless vLLM is installed and can start on this machine."""
    if find_spec("vllm") is None:
        raise ConfigError([
            "rollout=vllm needs vLLM, which is not installed; run `make setup-vllm` (on a GPU without make: "
            '.venv/bin/python -m pip install -e ".[gpu]"), or write rollout=hf'
        ])  # fmt: skip
    if problems := list(start_problems()):
        raise ConfigError([f"rollout.engine{problem}" for problem in problems])


def start_problems() -> Iterator[str]:
    """Yields why this machine cannot start vLLM on its GPU, as a text that follows the name of the key."""
    if torch.cuda.is_available() and (missing := missing_to_build("C")) is not None:
        needs = f" is vLLM, which on a GPU needs {missing} for Triton's launcher, and it is missing here"
        yield f"{needs}; install it, or write rollout=hf"


def vllm_sampling(
    request: GenerationRequest, sampling: SamplingParams, logprobs: int = 0, delta: bool = False
) -> Any:
    """Converts to vLLM's parameters: log-probs of the sampled token and of the `logprobs` likeliest tokens,
    only our stop tokens. With `delta` outputs hold only new tokens.
    """
    from vllm import SamplingParams as VLLMSamplingParams
    from vllm.sampling_params import RequestOutputKind

    return VLLMSamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        max_tokens=request.max_new_tokens,
        seed=request.seed,
        stop_token_ids=list(sampling.stop_token_ids),
        ignore_eos=True,
        logprobs=logprobs,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA if delta else RequestOutputKind.CUMULATIVE,
    )
