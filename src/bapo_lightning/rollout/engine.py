"""The contract between the data module and the engines that sample tokens."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import nn

from bapo_lightning.errors import EngineError
from bapo_lightning.types import FinishReason, Segment
from bapo_lightning.values import EngineDtype, StaleContext

EVERY = 2**31 - 1  # candidates of a place, or as many as there are
UNSYNCED_VERSION = -1  # of an engine that holds no weights of the trainer: new, restarted, or asleep
FACTOR_MARK = ".lora_"  # in the names of the factors of adapters
Content = Literal["merged", "split", "adapters"]
RunsIn = Literal["trainer", "child", "server", "fleet"]  # the process in which an engine samples


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The sampling distribution. The trainer must score tokens at the same temperature.

    Where `top_p` or `top_k` cuts it, the trainer takes the tokens that were left from the engine: at its
    edge, the nucleus of its own log-probs would differ, so that some sampled tokens would have probability
    zero there and a meaningless ratio.
    """

    temperature: float  # 1.0 = the model's own distribution; 0.0 = greedy, for evaluation only
    stop_token_ids: tuple[int, ...]  # a response ends with the first of these
    top_p: float = 1.0  # smallest set of tokens with this much mass; 1.0 = off
    top_k: int = 0  # number of the likeliest tokens that are kept; 0 = off
    # Of the tokens that can be sampled, so many likeliest are noted at each place; `EVERY` for all, 0 = none.
    noted: int = 0

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
    """Asks for at most `max_new_tokens` tokens after `token_ids` (prompt, and what was sampled before)."""

    token_ids: array[int]
    max_new_tokens: int
    seed: int  # with weights and tokens it determines what is sampled; from `seeds.request_seed`
    group: int = 0  # position of its group in the generation pass; engines ignore it
    index: int = 0  # number of its sample in the group; engines ignore it


@dataclass(frozen=True, slots=True)
class Generation:
    """The result of one request: the sampled tokens with the engine's version, and why they end."""

    segment: Segment
    finish: FinishReason


@dataclass(frozen=True, slots=True)
class StreamCall:
    """Some decoding steps of an engine whose requests come and go."""

    begun: Mapping[int, GenerationRequest]  # new ones, by numbers that no other has, in order of arrival
    given_up: Sequence[int] = ()  # numbers that are sampled no further; unknown ones do not matter
    steps: int = 8  # decoding steps, after which weights may change
    context: StaleContext = "keep"  # what becomes of keys and values of weights that were replaced


@dataclass(frozen=True, slots=True)
class Streamed:
    """What a call sampled of one request."""

    segments: tuple[Segment, ...]  # one, but where the engine had new weights since the call before
    finish: FinishReason | None  # None: it goes on at the next call


class EngineDied(EngineError):
    """An engine's process is gone or hangs. Finished generations are not lost."""

    def __init__(self, reason: str, finished: Mapping[int, Generation] | None = None) -> None:
        """`finished`: generations by the number of their request in the interrupted call."""
        super().__init__(reason)
        self.finished = dict(finished or {})


def weights_of(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields what a model's files hold: parameters, tied ones once, then persistent buffers, which some
    models need as much (the biases of experts' routers).
    """
    yield from model.named_parameters()
    ignored = set(getattr(model, "_keys_to_ignore_on_save", None) or ())
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(prefix, recurse=False):
            is_saved = name.rpartition(".")[2] not in module._non_persistent_buffers_set
            if is_saved and name not in ignored:
                yield name, buffer


def check_synced(version: int) -> None:
    """Raises EngineError for an engine without the trainer's weights, whose samples would be of no policy."""
    if version == UNSYNCED_VERSION:
        raise EngineError(
            "the engine was asked to generate before it was given weights: push them with WeightSync first"
        )


@dataclass(frozen=True, slots=True)
class Wanted:
    """Form in which an engine takes a policy's weights."""

    # merged: weights of a model without adapters; split: as they are, then the factors of the adapters as
    # `LAYER.lora_A.weight` [rank, in] and `LAYER.lora_B.weight` [out, rank], scaled; adapters: these alone.
    content: Content = "merged"
    dtype: EngineDtype | None = None  # None: as the policy has them
    # Names and shapes: those that transformers gives them in memory, or those of the model's files, which
    # whatever loads models by itself knows.
    names: Literal["model", "files"] = "model"
    is_export: bool = False  # what transformers keeps in float32, whatever a model's dtype is, stays so


MERGED = Wanted()


class WeightSource(Protocol):
    """A policy whose weights an engine can load."""

    def named_weights(self, wanted: Wanted = MERGED) -> Iterator[tuple[str, torch.Tensor]]:
        """Full weights under their Hugging Face names, tied ones once; each call starts again in order."""
        ...


class MeasuredWeights(WeightSource, Protocol):
    """The trainer's weights, whose shapes are known before they are gathered."""

    def weight_shapes(self) -> Iterator[tuple[str, torch.dtype, torch.Size]]:
        """Name, dtype and shape of each of the merged `named_weights`, in their order."""
        ...


@runtime_checkable
class RolloutEngine(Protocol):
    """Samples tokens from a copy of the policy.

    Every engine keeps these promises (one contract test runs against all of them): a segment carries the
    version of the weights that sampled it; log-probs are those of the distribution that was sampled from,
    temperature included (0 under greedy sampling); equal seeds give equal tokens on the same CPU, whatever
    else is sampled with them, and equal random numbers on a GPU; the trainer's random state, threads,
    environment and process group are left alone; `generate` returns one result per request, in order.

    A class that a configuration can choose has more attributes, read before an engine is made:
    `runs_in: RunsIn`; `shares_gpu: bool`, true if all ranks together take turns with the trainer on its
    GPUs, so that nothing is generated during training; and `most_noted: int`, the largest
    `SamplingParams.noted` that it serves, 0 without it.
    """

    @property
    def version(self) -> int:
        """Policy version of the weights held, or `UNSYNCED_VERSION`."""
        ...

    def generate(self, requests: Sequence[GenerationRequest], sampling: SamplingParams) -> list[Generation]:
        """Samples one continuation per request; `progress.phases.advance` may count those that are done.

        Raises EngineDied when the process is lost or hangs.
        """
        ...

    def load_weights(self, source: WeightSource, version: int) -> None:
        """Replaces all weights, streamed tensor by tensor, and clears what was cached under the old ones.

        Raises EngineError unless every weight came.
        """
        ...

    def sleep(self) -> None:
        """Gives device memory, if shared, to the trainer until the next `load_weights`."""
        ...

    def restart(self) -> None:
        """Starts a dead process anew, without weights. Raises EngineError where there is no process."""
        ...

    def close(self) -> None:
        """Gives back memory and processes. Calling it twice is fine."""
        ...


@runtime_checkable
class StreamingEngine(Protocol):
    """A further method of a `RolloutEngine` whose requests come and go between decoding steps."""

    def stream(self, call: StreamCall, sampling: SamplingParams) -> dict[int, Streamed]:
        """Samples for some steps; what came of each request that got tokens, by its number.

        Requests that find no room wait in the engine. What has not ended goes on at the next call, also after
        `load_weights`, and `generate` may be called in between, beside which an engine may go on with them.
        Log-probs are those of the distribution that was sampled from, with the context that the call asks
        for. A request's seed, the number of its tokens and its distribution determine the next token,
        whatever comes and goes beside it. Raises EngineDied, after which the engine knows no request.
        """
        ...


@runtime_checkable
class SeveralEngines(Protocol):
    """Further methods of a `RolloutEngine` that is several engines together."""

    def generate_on_each(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams
    ) -> Mapping[int, Sequence[Generation]]:
        """Samples the same requests on every engine; the generations of each by its number, which stays the
        same as long as the engine holds its weights. Raises EngineDied as `generate` does.
        """
        ...

    def take_counts(self) -> dict[str, float]:
        """Metrics of the engines since the last call, by their full names."""
        ...


@runtime_checkable
class Verifiable(Protocol):
    """Further methods of a `RolloutEngine` that can digest the weights it holds."""

    def weight_digests(self, seed: int) -> Mapping[int, Mapping[str, int]]:
        """Digests (`weight_digests`) of the weights that each engine holds, by its number and their module;
        without those that it holds in another form than they were sent.
        """
        ...
