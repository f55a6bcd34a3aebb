"""The contract between the data module and whatever samples tokens."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from bapo_lightning.types import FinishReason, Segment

UNSYNCED_VERSION = -1  # an engine that has not been given any weights by the trainer yet


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn. The same temperature must be used by the trainer when it scores them."""

    temperature: float  # 1.0 = the model's own distribution; 0.0 = greedy, for evaluation only
    stop_token_ids: tuple[int, ...]  # a response ends with the first of these

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature must be >= 0, got {self.temperature}")


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Continue `token_ids` by at most `max_new_tokens`. A resumed rollout is a request whose tokens include the part sampled before."""

    token_ids: array[int]
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class Generation:
    """What one request gave: the sampled tokens, stamped with the engine's version, and why they end."""

    segment: Segment
    finish: FinishReason


class RolloutEngine(Protocol):
    """Samples tokens from a copy of the policy.

    Every engine keeps these promises (one contract test runs against all of them): a segment carries the version of the weights that
    sampled it; log-probs are those of the distribution that was sampled from; sampling uses the engine's own generator and leaves
    every global one alone; `generate` returns one result per request, in order.
    """

    @property
    def version(self) -> int:
        """Policy version of the weights held, or `UNSYNCED_VERSION`."""
        ...

    def generate(self, requests: Sequence[GenerationRequest], sampling: SamplingParams, seed: int | None = None) -> list[Generation]:
        """Sample one continuation per request. With `seed` the draw depends on nothing else and the engine's own stream does not move."""
        ...

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Replace all weights, streamed tensor by tensor under their Hugging Face names. Raises EngineError unless every weight came."""
        ...

    def score(self, sequences: Sequence[array[int]]) -> list[array[float]]:
        """Log-probs at temperature 1 of tokens 1.. of each sequence given those before (one less than the sequence's length)."""
        ...

    def close(self) -> None:
        """Give back memory and processes. Calling it twice is fine."""
        ...
