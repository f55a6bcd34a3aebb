"""The contract between the data module and the engines that sample tokens.

Random numbers belong to a request, not to an engine: they stay the same after a restart, in another order, or
in another batch. On a CPU the tokens do, too; a GPU rounds differently in another batch.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import isclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from torch import nn

from bapo_lightning.system.errors import EngineError
from bapo_lightning.system.values import EngineDtype, StaleContext
from bapo_lightning.types import FinishReason, Segment

EVERY = 2**31 - 1  # as the number of candidates of a place: all of them
UNSYNCED_VERSION = -1  # of an engine without the trainer's weights: new, restarted, or asleep
FACTOR_MARK = ".lora_"  # in the names of the factors of adapters
Content = Literal["merged", "split", "adapters"]
RunsIn = Literal["trainer", "child", "server", "fleet"]  # the process in which an engine samples


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The sampling distribution. The trainer must score tokens at the same temperature.

    If `top_p` or `top_k` cuts it, the trainer takes the remaining tokens from the engine: the nucleus of its
    own log-probs would differ at the edge, so that some sampled tokens would have probability zero in it and
    a meaningless ratio.
    """

    temperature: float  # 1.0 = the model's own distribution; 0.0 = greedy, for evaluation only
    stop_token_ids: tuple[int, ...]  # a response ends with the first of these
    top_p: float = 1.0  # smallest set of tokens with this much mass; 1.0 = off
    top_k: int = 0  # number of likeliest tokens that are kept; 0 = off
    # Number of likeliest tokens recorded at each place, of those that can be sampled; `EVERY`: all, 0: none.
    num_candidates: int = 0

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature must be >= 0, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be >= 0, got {self.top_k}")

    @property
    def is_cut(self) -> bool:
        """Whether some tokens cannot be sampled."""
        return self.top_p < 1 or self.top_k > 0


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Request for at most `max_new_tokens` tokens after `token_ids` (prompt and earlier samples)."""

    token_ids: array[int]
    max_new_tokens: int
    seed: int  # determines samples together with weights and tokens; from `seeds.request_seed`
    group: int = 0  # position of its group in the generation pass; engines ignore it
    index: int = 0  # number of its sample in the group; engines ignore it


@dataclass(frozen=True, slots=True)
class Generation:
    """The result of one request: sampled tokens with the engine's version, and the reason for their end."""

    segment: Segment
    finish: FinishReason


@dataclass(frozen=True, slots=True)
class StreamCall:
    """Some decoding steps of an engine whose requests enter and leave at any time."""

    begun: Mapping[int, GenerationRequest]  # new requests, by unique numbers, in order of arrival
    given_up: Sequence[int] = ()  # numbers of requests to stop; unknown numbers are ignored
    steps: int = 8  # number of decoding steps, after which weights may change
    context: StaleContext = "keep"  # treatment of keys and values of weights that were replaced


@dataclass(frozen=True, slots=True)
class Streamed:
    """Samples of one request in a call."""

    segments: tuple[Segment, ...]  # more than one if the engine got new weights since the last call
    finish: FinishReason | None  # None: it continues at the next call

    def __reduce__(self) -> tuple[type[Streamed], tuple[Any, ...]]:
        """Pickles it by its arguments, as `Segment`."""
        return Streamed, (self.segments, self.finish)


class EngineDied(EngineError):
    """An engine's process is gone or hangs. Finished generations are not lost."""

    def __init__(self, reason: str, finished: Mapping[int, Generation] | None = None) -> None:
        """`finished`: generations by the number of their request in the interrupted call."""
        super().__init__(reason)
        self.finished = dict(finished or {})


def weights_of(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the content of a model's files: parameters, tied ones once, then persistent buffers, which some
    models need as well (the biases of experts' routers).
    """
    yield from model.named_parameters()
    ignored = set(getattr(model, "_keys_to_ignore_on_save", None) or ())
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(prefix, recurse=False):
            is_saved = name.rpartition(".")[2] not in module._non_persistent_buffers_set
            if is_saved and name not in ignored:
                yield name, buffer


def check_synced(version: int) -> None:
    """Raises EngineError for an engine without the trainer's weights, whose samples belong to no policy."""
    if version == UNSYNCED_VERSION:
        raise EngineError(
            "the engine was asked to generate before it was given weights: push them with WeightSync first"
        )


def check_prompts(requests: Iterable[GenerationRequest]) -> None:
    """Raises EngineError for a request without a prompt, which defines no distribution."""
    for number, request in enumerate(requests):
        if not request.token_ids:
            raise EngineError(f"request {number} has no prompt tokens; give it at least one, such as BOS")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Form in which an engine takes a policy's weights."""

    # merged: weights of a model without adapters; split: unmerged weights, then the factors of the adapters
    # as `LAYER.lora_A.weight` [rank, in] and `LAYER.lora_B.weight` [out, rank], scaled; adapters: only these.
    content: Content = "merged"
    dtype: EngineDtype | None = None  # None: as the policy has them
    # Names and shapes: as transformers has them in memory, or as in the model's files, which programs with
    # their own loaders know.
    names: Literal["model", "files"] = "model"
    is_export: bool = False  # weights that transformers keeps in float32 in models of any dtype stay so


MERGED = Wanted()


class WeightSource(Protocol):
    """A policy whose weights an engine can load."""

    def named_weights(self, wanted: Wanted = MERGED) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields full weights under their Hugging Face names, tied ones once; each call starts again."""
        ...


class MeasuredWeights(WeightSource, Protocol):
    """The trainer's weights, whose shapes are known before they are gathered."""

    def weight_shapes(self) -> Iterator[tuple[str, torch.dtype, torch.Size]]:
        """Yields name, dtype and shape of each of the merged `named_weights`, in their order."""
        ...


class RolloutEngine(ABC):
    """Samples tokens from a copy of the policy.

    Every engine keeps these promises (one contract test runs against all of them): a segment carries the
    version of the weights that sampled it; log-probs refer to the distribution that was sampled from,
    temperature included (0 under greedy sampling); equal seeds give equal tokens on the same CPU, whatever
    else is sampled with them, and equal random numbers on a GPU; the trainer's random state, threads,
    environment and process group do not change; `generate` returns one result per request, in order.

    The class attributes are read before an engine is made.
    """

    runs_in: ClassVar[RunsIn] = "trainer"
    # Whether all ranks share the trainer's GPUs by turns: nothing is generated during training.
    shares_gpu: ClassVar[bool] = False
    streams: ClassVar[bool] = False  # whether it has `stream`
    most_candidates: ClassVar[int] = 0  # largest `SamplingParams.num_candidates`
    # Lowest and highest `SamplingParams.temperature` above 0.
    temperatures: ClassVar[tuple[float, float]] = (0.0, math.inf)

    version: int = UNSYNCED_VERSION  # policy version of the weights held

    @property
    def wanted(self) -> Wanted:
        """Form in which the engine takes all weights."""
        return MERGED

    @abstractmethod
    def generate(self, requests: Sequence[GenerationRequest], sampling: SamplingParams) -> list[Generation]:
        """Samples one continuation per request; raises EngineDied if the process is lost or hangs."""

    @abstractmethod
    def load_weights(self, source: WeightSource, version: int) -> None:
        """Replaces all weights, tensor by tensor, and clears caches; EngineError unless all arrived."""

    def stream(self, call: StreamCall, sampling: SamplingParams) -> dict[int, Streamed]:
        """Samples for some steps; returns the new tokens of each request that got any, by its number.

        Requests enter and leave between decoding steps; requests without room wait in the engine. Unfinished
        requests continue at the next call, also after `load_weights`; `generate` may be called in between,
        and an engine may continue them during that call. Log-probs refer to the distribution that was
        sampled from, with the context that the call specifies. A request's seed, its number of tokens and
        its distribution determine the next token, whatever else is sampled. Raises EngineDied, after which
        the engine has forgotten all requests.
        """
        raise EngineError("requests of this engine cannot enter and leave between decoding steps")

    def generate_on_each(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams
    ) -> Mapping[int, Sequence[Generation]]:
        """Samples the same requests on each of the engines that this one consists of. Returns generations by
        the engine's number, which stays the same as long as it holds its weights. Raises EngineDied.
        """
        return {0: self.generate(requests, sampling)}

    def weight_digests(self, seed: int) -> Mapping[int, Mapping[str, int]]:
        """Returns digests (`weight_digests`) of the weights held, by the engine's number and the module,
        without weights held in another form than they were sent; empty if it cannot digest them.
        """
        return {}

    def take_counts(self) -> dict[str, float]:
        """Returns metrics of the engines since the last call, by their full names."""
        return {}

    def sleep(self) -> None:  # noqa: B027 (most engines have nothing to release)
        """Gives device memory, if shared, to the trainer until the next `load_weights`."""

    def restart(self) -> None:
        """Restarts a dead process, without weights. Raises EngineError if there is no process."""
        raise EngineError("an engine inside the training process cannot be restarted")

    def close(self) -> None:
        """Releases memory and processes. May be called twice."""
        self.version = UNSYNCED_VERSION


def engine_class(named: object) -> type[RolloutEngine]:
    """Returns the class of an engine; for a function, the base class, which promises least."""
    return named if isclass(named) and issubclass(named, RolloutEngine) else RolloutEngine


_GOLDEN_GAMMA = 0x9E3779B97F4A7C15


def request_seed(
    run_seed: int,
    version: int,
    problem_id: str,
    sample_index: int,
    epoch: int = 0,
    position: int = 0,
    variant: str = "",
) -> int:
    """Returns the seed of one sample, in [0, 2^63): a hash, so that neighbouring runs, versions and samples
    share nothing.

    `epoch`: of the problem stream, since a small set can come twice under one version. `position`: number of
    tokens sampled before; a resumed rollout must not repeat its first random numbers. `variant`: another way
    to ask the same problem again.
    """
    key = f"{run_seed}/{version}/{sample_index}/{problem_id}" + (
        f"/{epoch}/{position}" if epoch or position else ""
    )
    key += f"#{variant}" if variant else ""
    return _hashed(key)


def turn_seed(seed: int, length: int) -> int:
    """Returns the seed of a later turn in a pass, in [0, 2^63); `length`: number of tokens sampled before."""
    return _hashed(f"{seed}/turn {length}")


def _hashed(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") >> 1


def uniforms(seeds: np.ndarray, positions: int | np.ndarray) -> np.ndarray:
    """Returns the numbers at `positions` (from 0; one, or [B]) in the SplitMix64 streams of `seeds` [B]
    uint64 (Steele, Lea and Flood, OOPSLA 2014), as float64 in [0, 1).
    """
    z = seeds + (np.atleast_1d(positions).astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN_GAMMA)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
