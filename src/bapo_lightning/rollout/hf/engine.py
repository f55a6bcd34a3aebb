"""The in-process engine for small models: batched sampling with a KV cache, no server, no GPU needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from itertools import chain
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from bapo_lightning.rollout.engine import (
    EVERY,
    FACTOR_MARK,
    Generation,
    GenerationRequest,
    RolloutEngine,
    SamplingParams,
    StreamCall,
    Streamed,
    Wanted,
    WeightSource,
    check_prompts,
    check_synced,
    weights_of,
)
from bapo_lightning.rollout.hf.decoder import RunningBatch
from bapo_lightning.rollout.hf.reader import CACHED_SDPA, Reader
from bapo_lightning.rollout.weight_digests import drawn_part, part_digests, summed
from bapo_lightning.rollout.weight_transport import check_complete
from bapo_lightning.system.errors import ConfigError, EngineError
from bapo_lightning.system.precision import round_blocks
from bapo_lightning.system.pretrained import building, recurrent_part
from bapo_lightning.system.random_states import random_states_kept
from bapo_lightning.system.values import MIXED, Count, CountOrZero, EngineDtype

MOST_BESIDE = 64  # requests that join a stream's batch, such as a probe's; more get a separate cache
OTHER = "use a decoder-only model with attention alone, or an engine that has it, e.g. rollout=vllm"


@dataclass(eq=False)
class HFEngine(RolloutEngine):
    """Samples with its own copy of the model, whose weights change only by a sync."""

    streams: ClassVar[bool] = True
    most_candidates: ClassVar[int] = EVERY
    model_path: str  # Hugging Face folder or hub name; only its config is read, weights come from the trainer
    max_rows: Count = 512  # rows sampled at once; bounds the KV cache
    # dtype of weights and cache; bf16-mixed rounds like a trainer in mixed precision; None: float32.
    dtype: EngineDtype | None = None
    device: str = "auto"  # a torch device, such as cpu or cuda:1; auto takes a GPU if there is one
    context_length: CountOrZero = 0  # tokens of the longest text; 0: the model's number of positions
    _factors: dict[str, torch.Tensor] = field(default_factory=dict, init=False)  # of adapters, by name
    _hooks: list[RemovableHandle] = field(default_factory=list, init=False)  # apply the factors

    def __post_init__(self) -> None:
        self._device = indexed_device(self.device)
        self._is_mixed = self.dtype == MIXED
        dtype = torch.float32 if self._is_mixed else getattr(torch, self.dtype or "float32")
        with building(self.model_path, self.context_length) as config, random_states_kept():
            self._model = self._built(config, dtype)
        self._reader = Reader(self._model, self._is_mixed, self._device)
        self._running = RunningBatch(self.max_rows, self._device)

    def _built(self, config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
        check_holdable(config, self.model_path, self.context_length)
        try:
            model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=CACHED_SDPA)
        except (ValueError, KeyError):  # transformers: its attention takes no other kernel
            reason = f"{config.model_type} brings its own attention"
            raise ConfigError(
                [f"rollout=hf cannot sample from {self.model_path}: {reason}; {OTHER}"]
            ) from None
        if "position_ids" not in signature(model.base_model.forward).parameters:
            reason = f"{type(model).__name__} takes no positions of tokens"
            raise ConfigError([f"rollout=hf cannot sample from {self.model_path}: {reason}; {OTHER}"])
        if self._is_mixed:
            round_blocks(model)
        return model.to(self._device).eval().requires_grad_(False)

    def generate(self, requests: Sequence[GenerationRequest], sampling: SamplingParams) -> list[Generation]:
        """Samples at most `max_rows` requests at once. If they are few, a running stream continues."""
        check_synced(self.version)
        check_prompts(requests)
        generations: list[Generation] = []
        with torch.inference_mode():
            if self._running.is_busy and len(requests) <= MOST_BESIDE:
                return self._running.sample_now(requests, sampling, self._reader, self.version)
            for first in range(0, len(requests), self.max_rows):
                batch = RunningBatch(self.max_rows, self._device)
                part = requests[first : first + self.max_rows]
                generations += batch.sample_now(part, sampling, self._reader, self.version)
        return generations

    def stream(self, call: StreamCall, sampling: SamplingParams) -> dict[int, Streamed]:
        """Samples at most `max_rows` requests at once; the others wait for a row."""
        check_synced(self.version)
        check_prompts(call.begun.values())
        with torch.inference_mode():
            return self._running.run(call, sampling, self._reader, self.version)

    @property
    def wanted(self) -> Wanted:
        """Form in which it takes weights. Merged in 16 bits they would lose most of an adapter's update."""
        dtype = self.dtype or "float32"
        return Wanted("merged" if dtype == "float32" else "split", dtype)

    def load_weights(self, source: WeightSource, version: int) -> None:
        """Copies all weights."""
        parameters = dict(weights_of(self._model))
        missing = set(parameters)
        factors: dict[str, torch.Tensor] = {}
        with torch.no_grad():
            for name, weight in source.named_weights(self.wanted):
                if FACTOR_MARK in name:
                    factors[name] = weight.to(self._device, copy=True)
                    continue
                if name not in parameters:
                    raise EngineError(
                        f"the trainer sent a weight {name!r} that the engine's model does not have"
                    )
                if parameters[name].shape != weight.shape:
                    raise EngineError(
                        f"weight {name!r} has shape {tuple(weight.shape)}, the engine's has "
                        f"{tuple(parameters[name].shape)}"
                    )
                parameters[name].copy_(weight)
                missing.discard(name)
        check_complete(sorted(missing))
        self._adapt(factors)
        self.version = version

    def weight_digests(self, seed: int) -> dict[int, dict[str, int]]:
        """Returns digests of all weights."""
        held = chain(weights_of(self._model), self._factors.items())
        drawn = {name: drawn_part(name, weight, seed) for name, weight in held}
        return {0: summed(part_digests(drawn).items())}

    def _adapt(self, factors: dict[str, torch.Tensor]) -> None:
        for hook in self._hooks:
            hook.remove()
        self._factors, self._hooks = factors, []
        for name, down in factors.items():
            layer, mark, _ = name.rpartition(f"{FACTOR_MARK}A")
            if mark:
                added = partial(_added, down, factors[f"{layer}{FACTOR_MARK}B.weight"])
                self._hooks.append(self._model.get_submodule(layer).register_forward_hook(added))


def check_holdable(config: PreTrainedConfig, path: str, tokens: int = 0) -> None:
    """Raises ConfigError for a model whose state is not a cache of keys and values, that reads more than one
    row of tokens, or that scales attention in texts of up to `tokens` tokens (0: its number of positions) by
    the place in the row, in which padding counts.
    """
    if getattr(config, "is_encoder_decoder", False):
        problem = "is an encoder with a decoder"
    elif config.get_text_config() is not config:
        problem = "has parts other than its language model"
    elif type(config) not in AutoModelForCausalLM._model_mapping:
        problem = "is not a causal language model"
    elif part := recurrent_part(config):
        problem = f"has {part}"
    elif getattr(config, "attn_temperature_tuning", False) and (
        (tokens or config.max_position_embeddings) >= config.floor_scale
    ):
        problem = f"scales attention by the place in the row from {config.floor_scale} tokens on"
    else:
        return
    raise ConfigError([f"rollout=hf cannot sample from {path}: {config.model_type} {problem}; {OTHER}"])


def indexed_device(name: str) -> torch.device:
    """Returns the named device, a GPU with its number: the sampling thread has its own current GPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device("cuda", torch.cuda.current_device()) if name == "cuda" else torch.device(name)


def _added(
    down: torch.Tensor, up: torch.Tensor, layer: nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor
) -> torch.Tensor:
    return output + functional.linear(functional.linear(inputs[0], down), up)
