"""Options of a vLLM engine, in this process or as a server."""

from __future__ import annotations

import json
import os
import re
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from annotated_types import Le
from pydantic import ValidationError
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from bapo_lightning.errors import EngineError
from bapo_lightning.host import ALLOCATOR_VARIABLES, GROWING_SEGMENTS
from bapo_lightning.pretrained import building
from bapo_lightning.rollout.engine import GenerationRequest
from bapo_lightning.rollout.recurrence import recurrent_part
from bapo_lightning.values import Advice, Count, CountOrZero, Dtype, Share

CPU_KV_CACHE_BYTES = 1 << 30
WORKER_EXTENSION = "bapo_lightning.rollout.vllm.weights.WorkerExtension"
# Raised by vLLM for weights that do not fit; it has no class of its own for this.
LOADING_ERRORS = (KeyError, ValueError, RuntimeError, AssertionError)
ADAPTER, ADAPTER_NUMBER = "policy-adapter", 1  # of a policy with adapters, the only one
ADAPTER_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # for which vLLM makes room
PARALLEL = ("data_parallel_size", "pipeline_parallel_size")  # of vLLM's, which only a server can have
PROBE_TOKENS = 48  # of a weight sync's probe (conf/rollout/weight_sync/vllm.yaml), with its response


@dataclass(frozen=True, slots=True)
class VLLMOptions:
    """The options that matter to a run; all others of vLLM go through `extra`."""

    max_prompt_tokens: CountOrZero = 0  # longest prompt
    max_new_tokens: CountOrZero = 0  # longest response
    max_feedback_tokens: CountOrZero = 0  # of an environment between the turns of a response
    max_model_len: Count | None = None  # all together; None: the sum, and room for the probe of a sync
    # Of weights and cache; None: bfloat16 on a GPU, float32 on a CPU, few of which compute in bfloat16.
    dtype: Dtype | None = None
    max_num_seqs: Count = 256  # requests in one step
    tensor_parallel_size: Count = 1
    kv_cache_bytes: Count | None = None  # None: 1 GiB on a CPU; the rest of gpu_memory_utilization on a GPU
    # Share of the whole GPU; the trainer needs the rest.
    gpu_memory_utilization: Annotated[
        Share, Advice("is a share of the GPU's memory; write a number in (0, 1], e.g. 0.4")
    ] = 0.4
    enforce_eager: bool | None = None  # None: on a CPU yes (compiling takes a minute), on a GPU no
    # Of the policy's adapters, which vLLM then applies with its weights; None: weights come merged, which
    # in 16 bits loses small updates.
    lora_rank: Annotated[Count, Le(512)] | None = None
    lora_targets: Literal["all-linear"] | tuple[str, ...] = "all-linear"  # names of adapted layers
    extra: Mapping[str, Any] = field(default_factory=dict)  # further arguments under vLLM's own names

    @property
    def context_length(self) -> int:
        """Tokens of prompt, response and feedback together."""
        needed = self.max_prompt_tokens + self.max_new_tokens + self.max_feedback_tokens
        return self.max_model_len or max(PROBE_TOKENS, needed)

    @property
    def held_dtype(self) -> Dtype:
        """Precision of the weights in an engine on this machine."""
        return self.dtype or ("bfloat16" if torch.cuda.is_available() else "float32")

    def engine_arguments(
        self, model_path: str, on_cpu: bool, environment: Mapping[str, str] = os.environ
    ) -> dict[str, Any]:
        """Arguments of `vllm.LLM`, in a process with this environment.

        `processed_logprobs` makes log-probs those of the sampling distribution: vLLM's default leaves the
        temperature out, which biases every importance ratio. Weights come from the trainer, so none are read
        (`dummy`).
        """
        arguments = {
            "model": model_path,
            "max_model_len": self.context_length,
            "dtype": self.dtype or ("float32" if on_cpu else "bfloat16"),
            "max_num_seqs": self.max_num_seqs,
            "tensor_parallel_size": self.tensor_parallel_size,
            "enforce_eager": on_cpu if self.enforce_eager is None else self.enforce_eager,
            "logprobs_mode": "processed_logprobs",
            "max_logprobs": -1,  # of a place: as many as a request asks for
            "load_format": "dummy",
            "worker_extension_cls": WORKER_EXTENSION,
            "skip_tokenizer_init": True,
            "enable_prefix_caching": True,  # a group shares its prompt, and a turn what came before it
        }
        if on_cpu:
            # The CPU default of 128 leaves short prompts out of the prefix cache.
            arguments["block_size"] = 32
            # vLLM 0.32 on a CPU dies of a prompt that is read in several steps next to seeded requests.
            arguments["enable_chunked_prefill"] = False
            # Which vLLM's cache of recurrent states would need.
            config = AutoConfig.from_pretrained(model_path, trust_remote_code=False)
            arguments["enable_prefix_caching"] = recurrent_part(config) is None
        else:
            arguments["gpu_memory_utilization"] = self.gpu_memory_utilization
            if self.tensor_parallel_size > 1 and has_growing_segments(environment):
                # vLLM 0.32 ends ranks whose kernel would share memory of CUDA graphs in such segments.
                arguments["disable_custom_all_reduce"] = True
        if self.lora_rank is not None:
            arguments |= {
                "enable_lora": True,
                "max_lora_rank": next(rank for rank in ADAPTER_RANKS if rank >= self.lora_rank),
                "lora_target_modules": adapted_layers(model_path, self.lora_targets),
            }
        kv_cache_bytes = self.kv_cache_bytes or (CPU_KV_CACHE_BYTES if on_cpu else None)
        if kv_cache_bytes is not None:
            arguments["kv_cache_memory_bytes"] = kv_cache_bytes
        arguments |= self.extra
        overrides = arguments.get("hf_overrides", {})
        if not on_cpu and arguments["dtype"] != "float32" and isinstance(overrides, Mapping):
            # The trainer's product: float32 sums of 16-bit factors. vLLM would round logits to 16 bits; for
            # CPUs it has no such kernel, and would cast the whole head at every step.
            arguments["hf_overrides"] = {"head_dtype": "float32", **overrides}
        return arguments


def adapted_layers(model_path: str, targets: Literal["all-linear"] | tuple[str, ...]) -> list[str]:
    """Names of adapted linear layers; vLLM's own choice has head and embeddings, which the trainer does not
    adapt.
    """
    if targets != "all-linear":
        return list(targets)
    with building(model_path) as config, torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    head = model.get_output_embeddings()
    return sorted(
        {
            name.rpartition(".")[2]
            for name, layer in model.named_modules()
            if isinstance(layer, nn.Linear) and layer is not head
        }
    )


def reason_of(error: Exception) -> str:
    """Why vLLM did not start, in one sentence, without the list of all models that it has."""
    problems = error.errors() if isinstance(error, ValidationError) else []
    text = " ".join(each["msg"].removeprefix("Value error, ") for each in problems) or str(error)
    if found := re.search(r"Model architectures \['(\w+)'\] failed to be inspected", text):
        text = f"{found[1]} cannot be imported{_import_problem(found[1])}"
    if not text:  # of an assertion: where it stands
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{last.line} ({Path(last.filename).name})"
    if not isinstance(error, ValueError | RuntimeError):
        text = f"{type(error).__name__}: {text}"
    return " ".join(text.partition(" Supported architectures:")[0].split())


def _import_problem(architecture: str) -> str:
    """What vLLM only logs, from a process of its own."""
    from vllm.model_executor.models import ModelRegistry

    try:
        ModelRegistry.models[architecture].load_model_cls()
    except ImportError as error:
        return f" ({error})"
    return ""


def has_growing_segments(environment: Mapping[str, str]) -> bool:
    """Whether torch's allocator for GPUs uses expandable segments."""
    settings = [environment[name] for name in ALLOCATOR_VARIABLES if environment.get(name)]
    return bool(settings) and GROWING_SEGMENTS in settings[0]


def num_gpus(options: Mapping[str, Any]) -> int:
    """Returns the GPUs of one engine with these options of `VLLMOptions`."""
    extra = options.get("extra") or {}
    parallel = (options.get("tensor_parallel_size", 1), *(extra.get(name, 1) for name in PARALLEL))
    return prod(parallel)


def check_lengths(requests: Sequence[GenerationRequest], max_model_len: int) -> None:
    """Raises EngineError for a request that does not fit: vLLM would silently cut its response."""
    for number, request in enumerate(requests):
        if len(request.token_ids) + request.max_new_tokens > max_model_len:
            raise EngineError(
                f"request {number} has {len(request.token_ids)} prompt tokens and asks for "
                f"{request.max_new_tokens} more; vLLM was started for {max_model_len} in all (max_model_len)"
            )


def command_line(arguments: Mapping[str, Any]) -> list[str]:
    """Flags of vLLM's server: `--max-model-len 64 --enforce-eager --no-enable-prefix-caching`. Mappings are
    JSON, items of a list are words of their own, and what is None is left to vLLM.
    """
    flags: list[str] = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            items = value if isinstance(value, list | tuple) else [value]
            flags += [
                f"--{flag}",
                *(json.dumps(item) if isinstance(item, dict) else str(item) for item in items),
            ]
    return flags
