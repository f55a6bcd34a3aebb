"""The in-process engine for small models: batched sampling with a KV cache, no server, no GPU needed."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from itertools import chain
from typing import ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from bapo_lightning.errors import ConfigError, EngineError
from bapo_lightning.phases import advance
from bapo_lightning.precision import MIXED, round_blocks
from bapo_lightning.pretrained import building
from bapo_lightning.rollout.engine import (
    EVERY,
    FACTOR_MARK,
    UNSYNCED_VERSION,
    Generation,
    GenerationRequest,
    RunsIn,
    SamplingParams,
    StreamCall,
    Streamed,
    Wanted,
    WeightSource,
    check_synced,
    weights_of,
)
from bapo_lightning.rollout.hf.forward import Reader
from bapo_lightning.rollout.hf.kv_cache import CACHED_SDPA, move_rows
from bapo_lightning.rollout.hf.notes import Notes
from bapo_lightning.rollout.hf.running_batch import RunningBatch
from bapo_lightning.rollout.hf.sampling import sample_tokens
from bapo_lightning.rollout.recurrence import recurrent_part
from bapo_lightning.rollout.seeds import uniforms
from bapo_lightning.rollout.weight_digests import drawn_part, part_digests, summed
from bapo_lightning.rollout.weight_transport import check_complete
from bapo_lightning.types import FinishReason, Segment
from bapo_lightning.values import Count, EngineDtype

# Rows leave the batch once this share of it has finished: each compaction copies the KV cache.
COMPACTION_SHARE = 0.125
MOST_BESIDE = 64  # requests beside a stream, as those of a probe: more of them have a cache of their own
OTHER = "use a decoder-only model with attention alone, or an engine that has it, e.g. rollout=vllm"


@dataclass(eq=False)
class HFEngine:
    """Samples with its own copy of the model, whose weights change only by a sync."""

    runs_in: ClassVar[RunsIn] = "trainer"
    shares_gpu: ClassVar[bool] = False
    most_noted: ClassVar[int] = EVERY
    model_path: str  # Hugging Face folder or hub name; only its config is read, weights come from the trainer
    max_rows: Count = 512  # rows sampled at once; bounds the KV cache
    # Of weights and cache; bf16-mixed rounds where a trainer in mixed precision does; None: float32.
    dtype: EngineDtype | None = None
    device: str = "auto"  # a torch device, such as cpu or cuda:1; auto takes a GPU where there is one
    version: int = field(default=UNSYNCED_VERSION, init=False)  # policy version of the weights held
    _factors: dict[str, torch.Tensor] = field(default_factory=dict, init=False)  # of adapters, by name
    _hooks: list[RemovableHandle] = field(default_factory=list, init=False)  # that apply them

    def __post_init__(self) -> None:
        self._device = indexed_device(self.device)
        self._is_mixed = self.dtype == MIXED
        dtype = torch.float32 if self._is_mixed else getattr(torch, self.dtype or "float32")
        with building(self.model_path) as config:
            self._model = self._built(config, dtype)
        self._reader = Reader(self._model, self._is_mixed, self._device)
        self._running = RunningBatch(self.max_rows, self._device)

    def _built(self, config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
        check_holdable(config, self.model_path)
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
        """Samples at most `max_rows` requests at once. Where a stream is running it goes on beside few."""
        check_synced(self.version)
        results: list[Generation] = []
        with torch.inference_mode():
            if self._running.is_busy and len(requests) <= MOST_BESIDE:
                return self._running.beside(requests, sampling, self._reader, self.version)
            for first in range(0, len(requests), self.max_rows):
                results += self._generate_rows(requests[first : first + self.max_rows], sampling)
        return results

    def stream(self, call: StreamCall, sampling: SamplingParams) -> dict[int, Streamed]:
        """Samples at most `max_rows` requests at once; the others wait for a row."""
        check_synced(self.version)
        with torch.inference_mode():
            return self._running.run(call, sampling, self._reader, self.version)

    @property
    def wanted(self) -> Wanted:
        """Form in which it takes weights. In 16 bits merged ones would lose most of an adapter's update."""
        dtype = self.dtype or "float32"
        return Wanted("merged" if dtype == "float32" else "split", dtype)

    def load_weights(self, source: WeightSource, version: int) -> None:
        """Copies all weights."""
        own = dict(weights_of(self._model))
        missing = set(own)
        factors: dict[str, torch.Tensor] = {}
        with torch.no_grad():
            for name, weight in source.named_weights(self.wanted):
                if FACTOR_MARK in name:
                    factors[name] = weight.to(self._device, copy=True)
                    continue
                if name not in own:
                    raise EngineError(
                        f"the trainer sent a weight {name!r} that the engine's model does not have"
                    )
                if own[name].shape != weight.shape:
                    raise EngineError(
                        f"weight {name!r} has shape {tuple(weight.shape)}, the engine's has "
                        f"{tuple(own[name].shape)}"
                    )
                own[name].copy_(weight)
                missing.discard(name)
        check_complete(sorted(missing))
        self._adapt(factors)
        self.version = version

    def weight_digests(self, seed: int) -> dict[int, dict[str, int]]:
        """Digests of all weights."""
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

    def sleep(self) -> None:
        """Does nothing: its memory is small and stays."""

    def restart(self) -> None:
        """Raises EngineError: there is no process that could have died."""
        raise EngineError("an engine inside the training process cannot be restarted")

    def close(self) -> None:
        """Does nothing: its memory goes with the object."""

    def _generate_rows(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams
    ) -> list[Generation]:
        limits = torch.tensor([request.max_new_tokens for request in requests], device=self._device)
        stops = torch.tensor(sampling.stop_token_ids, device=self._device)
        sampled = torch.zeros(len(requests), int(limits.max()), dtype=torch.int32, device=self._device)
        logprobs = torch.zeros(sampled.shape, dtype=torch.float32, device=self._device)
        lengths = torch.zeros_like(limits)
        seeds = np.array([request.seed for request in requests], dtype=np.uint64)
        rows = torch.arange(len(requests), device=self._device)  # request of each row still in the batch
        alive = torch.ones_like(rows, dtype=torch.bool)
        stopped, num_alive = torch.zeros_like(alive), len(requests)
        prompts = [request.token_ids for request in requests]
        context, notes = _Context(self._reader, prompts, sampled.shape[1]), Notes(sampling.noted)
        for step in range(sampled.shape[1]):
            uniform = torch.from_numpy(uniforms(seeds, step)).to(self._device)
            chosen, chosen_logprobs, every = sample_tokens(context.logits, sampling, uniform)
            notes.add(rows[alive], every[alive])
            sampled[rows, step] = chosen.int()
            logprobs[rows, step] = chosen_logprobs
            lengths[rows] += alive
            ended = alive & torch.isin(chosen, stops)
            stopped[rows] |= ended
            alive = alive & ~ended & (step + 1 < limits[rows])
            num_before, num_alive = num_alive, int(alive.sum())
            advance(num_before - num_alive)
            if num_alive == 0:
                break
            if num_alive <= (1 - COMPACTION_SHARE) * len(rows):
                keep = alive.nonzero()[:, 0]
                context.keep_rows(keep)
                chosen, rows, alive, seeds = chosen[keep], rows[keep], alive[keep], seeds[keep.cpu().numpy()]
            context.append(chosen)
        return [
            Generation(
                Segment(
                    array("i", ids[:length].tobytes()),
                    array("f", values[:length].tobytes()),
                    self.version,
                    candidates=noted,
                ),
                FinishReason.STOP if has_stopped else FinishReason.LENGTH,
            )
            for ids, values, length, has_stopped, noted in zip(
                sampled.cpu().numpy(),
                logprobs.cpu().numpy(),
                lengths.tolist(),
                stopped.tolist(),
                notes.of_requests(len(requests)),
                strict=True,
            )
        ]


def check_holdable(config: PreTrainedConfig, path: str) -> None:
    """Raises ConfigError for a model whose state is no cache of keys and values, or that reads more than one
    row of tokens.
    """
    if getattr(config, "is_encoder_decoder", False):
        problem = "is an encoder with a decoder"
    elif config.get_text_config() is not config:
        problem = "has parts beside its language model"
    elif type(config) not in AutoModelForCausalLM._model_mapping:
        problem = "is no causal language model"
    elif part := recurrent_part(config):
        problem = f"has {part}"
    else:
        return
    raise ConfigError([f"rollout=hf cannot sample from {path}: {config.model_type} {problem}; {OTHER}"])


def indexed_device(name: str) -> torch.device:
    """Device of a name, a GPU with its number: the thread that samples has a current GPU of its own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device("cuda", torch.cuda.current_device()) if name == "cuda" else torch.device(name)


def _added(
    down: torch.Tensor, up: torch.Tensor, layer: nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor
) -> torch.Tensor:
    return output + functional.linear(functional.linear(inputs[0], down), up)


class _Context:
    """KV cache of all rows, and logits [B, V] of their next tokens."""

    def __init__(self, reader: Reader, prompts: Sequence[array[int]], new_tokens: int) -> None:
        self._reader = reader
        self._cache, self._mask, self._positions, self.logits = reader.opened(prompts, new_tokens)

    def keep_rows(self, rows: torch.Tensor) -> None:
        """Keeps these rows, in their order; the next call must be `append`."""
        move_rows(self._cache, rows)
        if self._mask is not None and self._positions is not None:
            self._mask, self._positions = self._mask[rows], self._positions[rows]

    def append(self, tokens: torch.Tensor) -> None:
        """Reads one more token of each row."""
        if self._mask is not None and self._positions is not None:
            self._mask = torch.cat([self._mask, self._mask.new_ones(len(tokens), 1)], dim=1)
            self._positions = self._positions[:, -1:] + 1
        self.logits = self._reader.next_logits(tokens[:, None], self._cache, self._mask, self._positions)
