"""Hands the trainer's weights to the rollout engine and proves that they arrived.

    WeightSync.push(policy, engine, version):
        policy.named_weights() --stream--> engine.load_weights --> sample a probe, score it, compare

The data module decides *when* to push; this file is only about *how*. A push that cannot be proven raises,
because stale weights in an engine show up as nothing but slightly wrong log-probs, days later.
"""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import Any, Protocol

from bapo_lightning.errors import EngineError
from bapo_lightning.rollout.engine import GenerationRequest, RolloutEngine, SamplingParams, WeightSource
from bapo_lightning.types import Rollout
from bapo_lightning.values import Count

PROBE_TOKEN_BUDGET = 4096  # a probe passes through the trainer's model at once


class ScoringWeightSource(WeightSource, Protocol):
    """The trainer's policy: weights that can also score."""

    def response_logprobs(self, rollouts: Sequence[Rollout], token_budget: int) -> list[array[float]]:
        """Log-probs [nats] of response tokens at the sampling temperature, `token_budget` at once."""
        ...


@dataclass(frozen=True, slots=True)
class SyncReport:
    """Cost of one push, and agreement of both sides after it."""

    version: int
    transfer_seconds: float  # load_weights
    probe_seconds: float  # the proof
    # Nats, over the probe's tokens; of the worst engine where there are several.
    mean_logprob_difference: float
    max_logprob_difference: float

    @property
    def seconds(self) -> float:
        """Duration of the whole push."""
        return self.transfer_seconds + self.probe_seconds


@dataclass(frozen=True, slots=True)
class WeightSync:
    """Streams weights into an engine, then lets it sample from fixed prompts and compares its log-probs with
    the trainer's.

    The engine samples instead of scoring, as it does for training data, so that the proof also finds a stale
    prefix cache, a wrong temperature, or log-probs of another distribution.
    """

    # Largest allowed mean |log-prob difference| in nats: about 1e-3 when both sides compute in float32, 0.2
    # when one of them computes in bfloat16. Real faults cause 1 to 18 nats.
    tolerance: float
    temperature: float = 1.0  # of training's sampling
    num_probes: Count = 4  # prompts
    # Tokens of a prompt, drawn uniformly from the vocabulary; longer than a block of the engine's prefix
    # cache, if it has one, so that a stale cache is met.
    probe_tokens: Count = 16
    sampled_tokens: Count = 4  # after each prompt

    @staticmethod
    def problems(options: Mapping[str, Any]) -> Iterator[str]:
        """A tolerance that no push would meet."""
        if options["tolerance"] <= 0:
            yield (
                f"tolerance={options['tolerance']}: no two computations agree to the last bit; write e.g. "
                "1e-3"
            )

    def probe(self, vocab_size: int, num_engines: int = 1) -> list[GenerationRequest]:
        """Returns the same requests for every push, to compare over time, and as many for each engine."""
        generator = random.Random(0)
        count = self.num_probes * num_engines
        prompts = [
            array("i", (generator.randrange(vocab_size) for _ in range(self.probe_tokens)))
            for _ in range(count)
        ]
        return [GenerationRequest(prompt, self.sampled_tokens, seed) for seed, prompt in enumerate(prompts)]

    def push(
        self,
        source: ScoringWeightSource,
        engine: RolloutEngine,
        version: int,
        vocab_size: int,
        num_engines: int = 1,
    ) -> SyncReport:
        """Loads the weights of `source` into `engine` as policy version `version`, and proves it.

        Of several engines behind `engine`, which must share requests in contiguous parts of equal number,
        each is proven by itself.

        Raises:
            EngineError: a weight is missing or has another shape, or the two sides disagree about the probe
                afterwards.
        """
        start = time.perf_counter()
        engine.load_weights(source, version)
        loaded = time.perf_counter()
        if engine.version != version:
            raise EngineError(
                f"after the weight sync the engine reports version {engine.version}, expected {version}"
            )
        requests = self.probe(vocab_size, num_engines)
        generations = engine.generate(requests, SamplingParams(self.temperature, stop_token_ids=()))
        rollouts = [
            Rollout(request.token_ids, (made.segment,), made.finish)
            for request, made in zip(requests, generations, strict=True)
        ]
        differences = logprob_differences(source, rollouts)
        mean = worst_part(differences, num_engines)
        if not mean <= self.tolerance:
            raise EngineError(
                f"after the sync of version {version}, engine and trainer disagree by {mean:.3g} nats (mean "
                f"over the probe's tokens, tolerance {self.tolerance:.3g}) about log-probs: the engine does "
                "not hold the trainer's weights, or samples from another distribution than it says. "
                "Rollouts from it would be mislabelled; check the engine's weight loading and temperature, "
                "or raise rollout.weight_sync.tolerance if the engine computes in lower precision"
            )
        return SyncReport(version, loaded - start, time.perf_counter() - loaded, mean, max(differences))


def worst_part(differences: Sequence[float], num_parts: int) -> float:
    """The largest mean of equal parts, so that right engines hide no wrong one; NaN is the largest."""
    size = len(differences) // num_parts
    means = [fmean(differences[first : first + size]) for first in range(0, len(differences), size)]
    return next((mean for mean in means if mean != mean), max(means))


def logprob_differences(source: ScoringWeightSource, rollouts: Sequence[Rollout]) -> list[float]:
    """|engine's log-prob - trainer's| in nats of every sampled token, in order."""
    own = chain.from_iterable(source.response_logprobs(rollouts, PROBE_TOKEN_BUDGET))
    return [
        abs(a - b)
        for a, b in zip(own, chain.from_iterable(rollout.logprobs for rollout in rollouts), strict=True)
    ]
