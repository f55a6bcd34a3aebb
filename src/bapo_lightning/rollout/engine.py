"""The contract between the data module and whatever samples tokens."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from bapo_lightning.errors import EngineError
from bapo_lightning.types import FinishReason, Segment

UNSYNCED_VERSION = -1  # an engine that holds no weights of the trainer: new, restarted, or asleep


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn. The same temperature must be used by the trainer when it scores them.

    `top_p` and `top_k` are for evaluation: the nucleus that the trainer would recompute from its own
    log-probs differs at the edge from the engine's, so that some sampled tokens would have probability zero
    there and a ratio that means nothing.
    """

    temperature: float  # 1.0 = the model's own distribution; 0.0 = greedy, for evaluation only
    stop_token_ids: tuple[int, ...]  # a response ends with the first of these
    top_p: float = 1.0  # smallest set of tokens with this much mass; 1.0 = off
    top_k: int = 0  # so many of the likeliest tokens; 0 = off

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature must be >= 0, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be >= 0, got {self.top_k}")


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Continue `token_ids` by at most `max_new_tokens`. A resumed rollout is a request whose tokens include
    the part sampled before.
    """

    token_ids: array[int]
    max_new_tokens: int
    seed: int  # with weights and tokens it determines what is sampled; from `seeds.request_seed`
    group: int = 0  # position of its group in the generation pass; engines ignore it
    index: int = 0  # number of its sample in the group; engines ignore it


@dataclass(frozen=True, slots=True)
class Generation:
    """What one request gave: the sampled tokens, stamped with the engine's version, and why they end."""

    segment: Segment
    finish: FinishReason


class EngineDied(EngineError):
    """An engine's process is gone, or hangs. What it had finished is not lost."""

    def __init__(self, reason: str, finished: Mapping[int, Generation] | None = None) -> None:
        """`finished`: generations by the place of their request in the interrupted call."""
        super().__init__(reason)
        self.finished = dict(finished or {})


def check_synced(version: int) -> None:
    """Raises EngineError for an engine of version `UNSYNCED_VERSION`, whose samples would be of no policy."""
    if version == UNSYNCED_VERSION:
        raise EngineError(
            "the engine was asked to generate before it was given weights: push them with WeightSync first"
        )


class WeightSource(Protocol):
    """Where an engine's weights come from."""

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Full weights under their Hugging Face names, one at a time, tied weights once. Every call starts
        anew, in the same order.
        """
        ...


class RolloutEngine(Protocol):
    """Samples tokens from a copy of the policy.

    Every engine keeps these promises (one contract test runs against all of them): a segment carries the
    version of the weights that sampled it; log-probs are those of the distribution that was sampled from,
    temperature included (0 under greedy sampling); equal seeds give equal tokens on the same machine,
    whatever else is sampled beside them; the trainer's random state, threads, environment and process group
    are left alone; `generate` returns one result per request, in order.
    """

    @property
    def version(self) -> int:
        """Policy version of the weights held, or `UNSYNCED_VERSION`."""
        ...

    def generate(self, requests: Sequence[GenerationRequest], sampling: SamplingParams) -> list[Generation]:
        """Sample one continuation per request. Raises EngineDied when the engine's process is lost or makes
        no progress.
        """
        ...

    def load_weights(self, source: WeightSource, version: int) -> None:
        """Replace all weights, streamed tensor by tensor, and forget what was cached under the old ones.

        Raises EngineError unless every weight came.
        """
        ...

    def sleep(self) -> None:
        """Give device memory to the trainer until the next `load_weights`, where the engine shares its
        device; nothing otherwise.
        """
        ...

    def restart(self) -> None:
        """Start a dead engine's process anew, without the trainer's weights. Raises EngineError where there
        is none to restart.
        """
        ...

    def close(self) -> None:
        """Give back memory and processes. Calling it twice is fine."""
        ...
