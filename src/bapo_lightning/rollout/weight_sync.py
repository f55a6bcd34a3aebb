"""Hands the trainer's weights to the rollout engine and proves that they arrived.

    WeightSync.push(policy, engine, version):  named_weights() --stream--> engine.load_weights --> probe both, compare

*When* to push is the data module's decision; this file is only about *how*. A push that cannot be proven raises, because stale weights
in an engine show up as nothing but slightly wrong log-probs, days later.
"""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from bapo_lightning.errors import EngineError
from bapo_lightning.rollout.engine import RolloutEngine


class WeightSource(Protocol):
    """The trainer's side of a push."""

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Full weights under their Hugging Face names; tied weights once."""
        ...

    def score(self, sequences: Sequence[array[int]]) -> list[array[float]]:
        """As `RolloutEngine.score`, computed by the trainer's model."""
        ...


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What one push cost and how well both sides agree after it."""

    version: int
    seconds: float  # transfer and probe
    max_logprob_difference: float  # nats, over the probe's tokens


class WeightSync:
    """Streams weights into an engine, then compares log-probs of fixed probe sequences on both sides.

    It does not decide when to push, and it keeps no copy of the weights.
    """

    def __init__(self, tolerance: float, num_probes: int = 4, probe_tokens: int = 16, seed: int = 0) -> None:
        """
        Args:
            tolerance: largest allowed |log-prob difference| in nats; about 1e-3 when both sides compute in float32.
            num_probes: number of probe sequences.
            probe_tokens: tokens of each probe, drawn uniformly from the vocabulary so that most embedding rows matter.
            seed: of the probe's tokens.
        """
        self.tolerance = tolerance
        self.num_probes = num_probes
        self.probe_tokens = probe_tokens
        self.seed = seed

    def probe(self, vocab_size: int) -> list[array[int]]:
        """The probe sequences: the same ones for every push, so that differences can be followed over time."""
        generator = random.Random(self.seed)
        return [array("i", (generator.randrange(vocab_size) for _ in range(self.probe_tokens))) for _ in range(self.num_probes)]

    def push(self, source: WeightSource, engine: RolloutEngine, version: int, vocab_size: int) -> SyncReport:
        """Make `engine` hold the weights of `source` as policy version `version`.

        Raises:
            EngineError: a weight is missing or has another shape, or the two sides disagree about the probe afterwards.
        """
        start = time.perf_counter()
        engine.load_weights(source.named_weights(), version)
        if engine.version != version:
            raise EngineError(f"after the weight sync the engine reports version {engine.version}, expected {version}")
        probe = self.probe(vocab_size)
        difference = largest_difference(source.score(probe), engine.score(probe))
        if not difference <= self.tolerance:
            raise EngineError(
                f"after the sync of version {version}, engine and trainer disagree by {difference:.3g} nats on the log-probs of the probe "
                f"(tolerance {self.tolerance:.3g}): the engine does not hold the trainer's weights. Rollouts from it would be mislabelled; "
                "check the engine's weight loading, or raise rollout.weight_sync.tolerance if the engine computes in lower precision"
            )
        return SyncReport(version, time.perf_counter() - start, difference)


def largest_difference(left: Sequence[array[float]], right: Sequence[array[float]]) -> float:
    """Largest |a - b| over two equally shaped lists of log-prob arrays; NaN if any value is NaN."""
    differences = [abs(a - b) for xs, ys in zip(left, right, strict=True) for a, b in zip(xs, ys, strict=True)]
    if any(difference != difference for difference in differences):
        return float("nan")
    return max(differences, default=0.0)
