"""An engine whose responses have lengths of a given distribution, whatever the policy writes: every token is
sampled as always, and a response ends where its length says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from bapo_lightning.rollout.engine import Generation, GenerationRequest, SamplingParams, StreamCall, Streamed
from bapo_lightning.rollout.hf.engine import HFEngine
from bapo_lightning.types import FinishReason

Shape = Literal["short", "uniform", "log_normal", "bimodal"]
MEAN = 24  # tokens, of all shapes but `short`


@dataclass(eq=False)
class ForcedLengths(HFEngine):
    """Lengths follow from the seeds of requests."""

    shape: Shape = "uniform"

    def generate(self, requests: Sequence[GenerationRequest], sampling: SamplingParams) -> list[Generation]:
        generations = super().generate([self._cut(request) for request in requests], self._endless(sampling))
        return [replace(each, finish=FinishReason.STOP) for each in generations]

    def stream(self, call: StreamCall, sampling: SamplingParams) -> dict[int, Streamed]:
        cut = {number: self._cut(request) for number, request in call.begun.items()}
        streamed = super().stream(replace(call, begun=cut), self._endless(sampling))
        return {
            number: each if each.finish is None else replace(each, finish=FinishReason.STOP)
            for number, each in streamed.items()
        }

    def _cut(self, request: GenerationRequest) -> GenerationRequest:
        length = drawn(self.shape, np.random.default_rng(request.seed))
        return replace(request, max_new_tokens=min(length, request.max_new_tokens))

    def _endless(self, sampling: SamplingParams) -> SamplingParams:
        return replace(sampling, stop_token_ids=())


def drawn(shape: Shape, generator: np.random.Generator) -> int:
    """A length in tokens, of mean `MEAN` before it is cut; about 6 for `short`."""
    if shape == "short":
        return int(generator.integers(4, 9))
    if shape == "uniform":
        return int(generator.integers(1, 2 * MEAN))
    if shape == "log_normal":  # sigma 1
        return max(1, round(generator.lognormal(np.log(MEAN) - 0.5, 1.0)))
    return 8 if generator.random() < 0.8 else 88
