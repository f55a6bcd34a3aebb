"""Options of a vLLM engine, in this process or as a server."""

from __future__ import annotations

import json
import os
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from annotated_types import Le
from pydantic import ValidationError
from torch import nn
from transformers import AutoModelForCausalLM

from bapo_lightning.rollout.engine import GenerationRequest, check_prompts
from bapo_lightning.system.errors import EngineError
from bapo_lightning.system.host import ALLOCATOR_VARIABLES, GROWING_SEGMENTS
from bapo_lightning.system.pretrained import building, longest_short, read_model_config, recurrent_part
from bapo_lightning.system.values import Advice, Count, CountOrZero, Dtype, Share

CPU_KV_CACHE_BYTES = 1 << 30
WORKER_EXTENSION = "bapo_lightning.rollout.vllm.weights.WorkerExtension"
# Raised by vLLM for weights that do not fit; it has no special class for this.
LOADING_ERRORS = (KeyError, ValueError, RuntimeError, AssertionError)
ADAPTER, ADAPTER_NUMBER = "policy-adapter", 1  # the only adapter of a policy with adapters
ADAPTER_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # ranks for which vLLM can make room
PARALLEL = ("data_parallel_size", "pipeline_parallel_size")  # vLLM's options that only a server can have
PROBE_TOKENS = 48  # of a weight sync's probe (conf/rollout/weight_sync/vllm.yaml), with its response
# Arguments of vLLM without which a run cannot use it.
NEEDED: dict[str, Any] = {
    "logprobs_mode": "processed_logprobs",
    "max_logprobs": -1,  # at a place: as many as a request asks for
    "load_format": "dummy",
    "worker_extension_cls": WORKER_EXTENSION,
    "skip_tokenizer_init": True,
}
LENGTHS = "max_model_len", "max_prompt_tokens", "max_new_tokens", "max_feedback_tokens"
# vLLM's names of options that have separate keys, and these keys.
SAME = "dtype", "enforce_eager", "gpu_memory_utilization", "max_model_len", "max_num_seqs"
OWN_KEYS = {
    **dict(zip(SAME, SAME, strict=True)),
    "kv_cache_memory_bytes": "kv_cache_bytes",
    "model": "model.path",
    "tensor_parallel_size": "tensor_parallel_size",
}


@dataclass(frozen=True, slots=True)
class VLLMOptions:
    """The options that matter to a run; all other options of vLLM go through `extra`."""

    max_prompt_tokens: CountOrZero = 0  # longest prompt
    max_new_tokens: CountOrZero = 0  # longest response
    max_feedback_tokens: CountOrZero = 0  # from an environment, between the turns of a response
    max_model_len: Count | None = None  # of all together; None: the sum, with room for a sync's probe
    # dtype of weights and cache; None: bfloat16 on a GPU, float32 on a CPU, since few CPUs have bfloat16.
    dtype: Dtype | None = None
    max_num_seqs: Count = 256  # requests in one step
    tensor_parallel_size: Count = 1
    kv_cache_bytes: Count | None = None  # None: 1 GiB on a CPU; the rest of gpu_memory_utilization on a GPU
    # Share of the whole GPU; the trainer needs the rest.
    gpu_memory_utilization: Annotated[
        Share, Advice("is a share of the GPU's memory; write a number in (0, 1], e.g. 0.4")
    ] = 0.4
    enforce_eager: bool | None = None  # None: yes on a CPU (compiling takes a minute), no on a GPU
    # Rank of the policy's adapters, which vLLM then applies to its weights; None: weights are sent merged,
    # which in 16 bits loses small updates.
    lora_rank: Annotated[Count, Le(512)] | None = None
    lora_targets: Literal["all-linear"] | tuple[str, ...] = "all-linear"  # names of adapted layers
    extra: Mapping[str, Any] = field(default_factory=dict)  # more arguments, under vLLM's own names

    @staticmethod
    def problems(options: Mapping[str, Any]) -> Iterator[str]:
        """Yields lengths that do not fit, and arguments of vLLM that have keys here or that a run needs."""
        most, *lengths = (options.get(name) or 0 for name in LENGTHS)
        extra = options.get("extra") or {}
        if 0 < most < sum(lengths):
            prompt, response, feedback = lengths
            yield (
                f"max_model_len={most}: a prompt of {prompt} tokens, a response of {response} and feedback "
                f"of {feedback} need {sum(lengths)}; leave it out, or write {sum(lengths)}"
            )
        for name in sorted(extra.keys() & OWN_KEYS.keys()):
            yield f"extra.{name}={extra[name]}: write {OWN_KEYS[name]}={extra[name]} instead"
        for name in sorted(extra.keys() & NEEDED.keys()):
            if extra[name] != NEEDED[name]:
                needed = f"a run starts vLLM with {name}={NEEDED[name]}"
                yield f"extra.{name}={extra[name]}: {needed}; leave it out"

    @property
    def context_length(self) -> int:
        """Number of tokens of prompt, response and feedback together."""
        return self.max_model_len or max(PROBE_TOKENS, self.needed_tokens)

    @property
    def needed_tokens(self) -> int:
        """Number of tokens of the run's longest text."""
        return self.max_prompt_tokens + self.max_new_tokens + self.max_feedback_tokens

    @property
    def held_dtype(self) -> Dtype:
        """Precision of the weights in an engine on this machine."""
        return self.dtype or ("bfloat16" if torch.cuda.is_available() else "float32")

    def engine_arguments(
        self, model_path: str, on_cpu: bool, environment: Mapping[str, str] = os.environ
    ) -> dict[str, Any]:
        """Returns the arguments of `vllm.LLM`, in a process with this environment.

        `processed_logprobs` makes log-probs refer to the sampling distribution: vLLM's default ignores the
        temperature, which biases every importance ratio. Weights come from the trainer, so none are read
        (`dummy`).
        """
        arguments = {
            "model": model_path,
            "max_model_len": self.context_length,
            "dtype": self.dtype or ("float32" if on_cpu else "bfloat16"),
            "max_num_seqs": self.max_num_seqs,
            "tensor_parallel_size": self.tensor_parallel_size,
            "enforce_eager": on_cpu if self.enforce_eager is None else self.enforce_eager,
            **NEEDED,
            "enable_prefix_caching": True,  # a group shares its prompt, and a turn the text before it
        }
        if on_cpu:
            # The CPU default of 128 leaves short prompts out of the prefix cache.
            arguments["block_size"] = 32
            # vLLM 0.32 on a CPU dies if it reads a prompt in several steps together with seeded requests.
            arguments["enable_chunked_prefill"] = False
            # vLLM's cache of recurrent states would need chunked prefill.
            config = read_model_config(model_path)
            arguments["enable_prefix_caching"] = recurrent_part(config) is None
            if arguments["dtype"] != "bfloat16" and hasattr(config, "kv_lora_rank"):
                # vLLM 0.32 takes its latent attention for AMX with any dtype, and has it for bfloat16 alone.
                arguments["attention_backend"] = "CPU_MLA"
        else:
            arguments["gpu_memory_utilization"] = self.gpu_memory_utilization
            if self.tensor_parallel_size > 1 and has_growing_segments(environment):
                # vLLM 0.32 kills ranks whose kernel would share memory of CUDA graphs in such segments.
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
        overrides = self._rope(model_path)
        if not on_cpu and arguments["dtype"] != "float32":
            # As in the trainer: float32 sums of products of 16-bit factors. vLLM would round logits to 16
            # bits; on CPUs it has no such kernel and would cast the whole head at every step.
            overrides["head_dtype"] = "float32"
        given = arguments.get("hf_overrides", {})
        if overrides and isinstance(given, Mapping):
            arguments["hf_overrides"] = {**overrides, **given}
        return arguments

    def _rope(self, model_path: str) -> dict[str, Any]:
        """Returns the trainer's factors of LongRoPE; vLLM would choose them by its `max_model_len`."""
        with building(model_path, self.needed_tokens) as config:
            has_parts = config.get_text_config() is not config
            is_fixed = longest_short(config) is None or has_parts
            return {} if is_fixed else {"rope_parameters": config.rope_parameters}


def adapted_layers(model_path: str, targets: Literal["all-linear"] | tuple[str, ...]) -> list[str]:
    """Returns the names of adapted layers; vLLM's own choice has head and embeddings as well."""
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
    """Returns in one sentence why vLLM did not start, without its list of all models."""
    problems = error.errors() if isinstance(error, ValidationError) else []
    text = " ".join(each["msg"].removeprefix("Value error, ") for each in problems) or str(error)
    if match := re.search(r"Model architectures \['(\w+)'\] failed to be inspected", text):
        text = f"{match[1]} cannot be imported{_import_problem(match[1])}"
    if not text:  # of an assertion: its line
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{last.line} ({Path(last.filename).name})"
    if not isinstance(error, ValueError | RuntimeError):
        text = f"{type(error).__name__}: {text}"
    return " ".join(text.partition(" Supported architectures:")[0].split())


def cache_named(reason: str) -> str:
    """Puts our key of the cache's size into the reason of a failed start; the key in vLLM's is unused."""
    return re.sub(
        r"`gpu_memory_utilization`( \([^)]*\))?", "kv_cache_bytes in the options of rollout.engine", reason
    )


def _import_problem(architecture: str) -> str:
    """Returns the import error, which vLLM only logs, from a separate process."""
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
    """Returns the number of GPUs of one engine with these options of `VLLMOptions`."""
    extra = options.get("extra") or {}
    parallel = (options.get("tensor_parallel_size", 1), *(extra.get(name, 1) for name in PARALLEL))
    return prod(parallel)


def check_lengths(requests: Sequence[GenerationRequest], max_model_len: int) -> None:
    """Raises EngineError for a request without a prompt, or one whose response vLLM would silently cut."""
    check_prompts(requests)
    for number, request in enumerate(requests):
        if len(request.token_ids) + request.max_new_tokens > max_model_len:
            raise EngineError(
                f"request {number} has {len(request.token_ids)} prompt tokens and asks for "
                f"{request.max_new_tokens} more; vLLM was started for {max_model_len} in all (max_model_len)"
            )


def command_line(arguments: Mapping[str, Any]) -> list[str]:
    """Returns flags of vLLM's server: `--max-model-len 64 --enforce-eager --no-enable-prefix-caching`.
    Mappings become JSON, items of a list separate words, and None is left to vLLM.
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
