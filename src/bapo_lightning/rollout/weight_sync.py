"""Hands the trainer's weights to the rollout engine and proves that they arrived.

    WeightSync.load(policy, engine, version), WeightSync.prove:
        policy.named_weights() --stream--> engine.load_weights --> sample a probe | score it, compare
             |                              |                                     |
          digests                        digests                 the engine samples again meanwhile

The data module decides *when* weights are handed over, this file only *how*. A failed proof raises, because
stale weights in an engine would only show as slightly wrong log-probs, days later.
"""

from __future__ import annotations

import math
import random
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import fmean
from typing import Any, Protocol

from torch import Tensor

from bapo_lightning.rollout.engine import (
    Generation,
    GenerationRequest,
    MeasuredWeights,
    RolloutEngine,
    SamplingParams,
)
from bapo_lightning.rollout.weight_digests import SentWeights
from bapo_lightning.system.errors import EngineError
from bapo_lightning.system.values import Count, NonNegative
from bapo_lightning.types import Rollout

PROBE_TOKEN_BUDGET = 4096  # so that a probe passes through the trainer's model at once
# Nats, mean over the probe's tokens. If the trainer's log-probs have changed by so little, an engine's may
# not have changed at all: the learning rate is still 0, or its weights were rounded.
SMALLEST_CHANGE = 1e-5


class ScoringWeightSource(MeasuredWeights, Protocol):
    """The trainer's policy: weights that can also score."""

    @property
    def update_kept(self) -> float | None:
        """Share of the adapters' update that the last pass over the weights delivered; None without one."""

    def response_logprobs(self, rollouts: Sequence[Rollout], token_budget: int) -> list[array[float]]:
        """Returns log-probs [nats] of response tokens at the sampling temperature, `token_budget` at once."""

    def response_scores(
        self, rollouts: Sequence[Rollout], token_budget: int, names: Sequence[str]
    ) -> list[tuple[array[float], ...]]:
        """Returns several scores of the same tokens, in the order of their names."""

    def reference_logprobs(self, rollouts: Sequence[Rollout], token_budget: int) -> list[array[float]]:
        """Returns log-probs under the run's first weights."""


class VersionedPolicyOwner(Protocol):
    """The part of the LightningModule that the data side needs."""

    policy: ScoringWeightSource
    micro_batch_tokens: int
    last_entropy: float | Tensor  # nats, mean over the tokens of the last update

    @property
    def policy_version(self) -> int:
        """Optimizer updates made so far."""


@dataclass(frozen=True, slots=True)
class SyncReport:
    """Cost of one push, and agreement of engine and trainer after it."""

    version: int
    transfer_seconds: float  # load_weights
    probe_seconds: float  # the proof
    # Nats, over the probe's tokens; of the worst engine if there are several.
    mean_logprob_difference: float
    max_logprob_difference: float
    compared_share: float = 0.0  # share of the modules whose weights were compared
    update_kept: float | None = None  # see `ScoringWeightSource`

    @property
    def seconds(self) -> float:
        """Duration of the whole push."""
        return self.transfer_seconds + self.probe_seconds


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """Tokens that one engine sampled for a probe, and both sides' log-probs of them, in nats."""

    token_ids: list[int]
    engine: list[float]
    trainer: list[float]

    @property
    def differences(self) -> list[float]:
        """|engine's log-prob - trainer's log-prob| in nats of every sampled token."""
        return [abs(a - b) for a, b in zip(self.engine, self.trainer, strict=True)]


@dataclass(frozen=True, slots=True)
class Proof:
    """Evidence of whether an engine took its weights, still without the trainer's part of the proof."""

    source: ScoringWeightSource  # holds the weights that were sent
    version: int
    requests: Sequence[GenerationRequest]  # the probe
    answers: Mapping[int, Sequence[Generation]]  # answer of each engine to the probe
    held: Mapping[int, Mapping[str, int]]  # digests of the weights of each engine that reports them
    transfer_seconds: float
    answer_seconds: float  # to sample it
    digest_seconds: float


MOST_PROBED = 65_536  # tokens of all probes, which are sampled and scored after each update
LEAST_FAULT = 1.0  # smallest difference of real faults, in nats


@dataclass(slots=True)
class WeightSync:
    """Streams weights into an engine, then lets it sample from fixed prompts and compares its log-probs with
    the trainer's.

    The engine samples instead of scoring, as it does for training data, so that the proof also finds a stale
    prefix cache, a wrong temperature, or log-probs of another distribution.

    Stale weights of a slowly changing policy, or a single lost layer, agree with the trainer's within any
    tolerance that rounding needs. Digests of the weights sent and held find them (`weight_digests`), if the
    engine can report these. Other engines that keep old weights are found because they give the same answer
    to the same probe, to the bit, while the trainer's log-probs of the answer have moved.
    """

    # Largest allowed mean |log-prob difference| in nats: about 1e-3 if both sides compute in float32, 0.2 if
    # one of them computes in bfloat16. Real faults cause 1 to 18 nats.
    tolerance: float
    temperature: NonNegative = 1.0  # of training's sampling
    num_probes: Count = 4  # prompts
    # Tokens of a prompt, drawn uniformly from the vocabulary; longer than a block of the engine's prefix
    # cache, if it has one, so that a stale cache is used and detected.
    probe_tokens: Count = 16
    sampled_tokens: Count = 4  # after each prompt
    # Each engine's newest answer, as scored when it was first given.
    _answers: dict[int, ProbeAnswer] = field(default_factory=dict, init=False, repr=False, compare=False)
    _sent: SentWeights = field(default_factory=SentWeights, init=False, repr=False, compare=False)

    @staticmethod
    def problems(options: Mapping[str, Any]) -> Iterator[str]:
        """Yields tolerances that no push or every push would meet, and probes that would take too long."""
        each = options.get("probe_tokens", 0) + options.get("sampled_tokens", 0)
        if (count := options.get("num_probes", 0)) * each > MOST_PROBED:
            yield (
                f"num_probes={count} of {each} tokens are more than the {MOST_PROBED} tokens "
                "that a sync may take; write fewer, or shorter ones"
            )
        if options["tolerance"] >= LEAST_FAULT:
            yield f"tolerance={options['tolerance']} proves nothing; write e.g. 0.2"
        elif options["tolerance"] <= 0:
            yield (
                f"tolerance={options['tolerance']}: no two computations agree to the last bit; write e.g. "
                "1e-3"
            )

    def probe(self, vocab_size: int) -> list[GenerationRequest]:
        """Returns the same requests for every push, to compare over time."""
        generator = random.Random(0)
        prompts = [
            array("i", (generator.randrange(vocab_size) for _ in range(self.probe_tokens)))
            for _ in range(self.num_probes)
        ]
        return [GenerationRequest(prompt, self.sampled_tokens, seed) for seed, prompt in enumerate(prompts)]

    def push(
        self, source: ScoringWeightSource, engine: RolloutEngine, version: int, vocab_size: int
    ) -> SyncReport:
        """Loads weights and proves them; see `load` and `prove`."""
        return self.prove(self.load(source, engine, version, vocab_size))

    def load(
        self, source: ScoringWeightSource, engine: RolloutEngine, version: int, vocab_size: int
    ) -> Proof:
        """Loads the weights of `source` as policy version `version` into `engine`, or into each of several,
        and lets it answer the probe. Raises EngineError if a weight is missing or has another shape.

        After this the engine is free. The proof must follow before the weights of `source` change.
        """
        start = time.perf_counter()
        self._sent.source, self._sent.next_seed = source, version
        engine.load_weights(self._sent, version)
        loaded = time.perf_counter()
        if engine.version != version:
            raise EngineError(
                f"after the weight sync the engine reports version {engine.version}, expected {version}"
            )
        requests = self.probe(vocab_size)
        sampling = SamplingParams(self.temperature, stop_token_ids=())
        answers = engine.generate_on_each(requests, sampling)
        probed = time.perf_counter()
        held = engine.weight_digests(self._sent.seed)
        end = time.perf_counter()
        return Proof(source, version, requests, answers, held, loaded - start, probed - loaded, end - probed)

    def prove(self, proof: Proof) -> SyncReport:
        """Raises EngineError if the two sides disagree about the probe, or if an engine holds other weights
        than it was sent, or still gives an old answer.
        """
        start, version = time.perf_counter(), proof.version
        answers = probe_answers(proof.source, proof.requests, proof.answers)
        trainer_logprobs = chain.from_iterable(answer.trainer for answer in answers.values())
        if not all(map(math.isfinite, trainer_logprobs)):
            raise EngineError(
                f"after the sync of version {version} the trainer's own log-probs of the probe are not "
                "finite: its weights have become NaN or infinite, or overflow in its precision. Resume from "
                "an earlier checkpoint with a lower optimizer.optimizer.lr"
            )
        mean = worst([fmean(answer.differences) for answer in answers.values()])
        if not mean <= self.tolerance:
            raise EngineError(
                f"after the sync of version {version}, engine and trainer disagree by {mean:.3g} nats (mean "
                f"over the probe's tokens, tolerance {self.tolerance:.3g}) about log-probs: the engine does "
                "not hold the trainer's weights, or samples from another distribution than it reports. "
                "Rollouts from it would be mislabelled; check the engine's weight loading and temperature, "
                "or raise rollout.weight_sync.tolerance if the engine computes in lower precision"
            )
        largest = max(chain.from_iterable(answer.differences for answer in answers.values()))
        compared = self._check_digests(proof.held, version)
        for number, answer in answers.items():
            self._check_fresh(number, answer, version)
        return SyncReport(
            version,
            proof.transfer_seconds,
            proof.answer_seconds + proof.digest_seconds + time.perf_counter() - start,
            mean,
            largest,
            compared,
            proof.source.update_kept,
        )

    def _check_digests(self, digests: Mapping[int, Mapping[str, int]], version: int) -> float:
        """Returns the share of modules that could be compared. Raises EngineError for wrong weights."""
        if not digests:
            return 0.0
        sent, shares = self._sent.digests(), []
        for number, held in digests.items():
            known = sent.keys() & held.keys()
            wrong = sorted(module for module in known if sent[module] != held[module])
            if wrong:
                raise EngineError(
                    f"after the sync of version {version} engine {number} does not hold the trainer's "
                    f"weights in {len(wrong)} of {len(known)} modules, first {wrong[0]}: a layer was lost, "
                    "or weights of an older version are still there. Its rollouts would be mislabelled; "
                    "check the engine's weight loading, and that its dtype is the one it was started with"
                )
            shares.append(len(known) / max(1, len(sent)))
        return min(shares, default=0.0)

    def _check_fresh(self, number: int, answer: ProbeAnswer, version: int) -> None:
        """Raises EngineError for an answer that is the same as under weights with other scores for it."""
        earlier = self._answers.get(number)
        if earlier is None or (answer.token_ids, answer.engine) != (earlier.token_ids, earlier.engine):
            self._answers[number] = answer
            return
        moved = fmean(abs(a - b) for a, b in zip(answer.trainer, earlier.trainer, strict=True))
        if moved > SMALLEST_CHANGE:
            raise EngineError(
                f"after the sync of version {version} the engine answers the probe as it did before, to the "
                f"last bit, while the trainer's log-probs of the answer have moved by {moved:.3g} nats: the "
                "engine did not take the new weights. Its rollouts would be older than labelled; check the "
                "engine's weight loading"
            )


def worst(means: Sequence[float]) -> float:
    """Returns the largest mean of several engines, so that none hides another's fault; NaN is largest."""
    return next((mean for mean in means if mean != mean), max(means))


def probe_answers(
    source: ScoringWeightSource,
    requests: Sequence[GenerationRequest],
    generated: Mapping[int, Sequence[Generation]],
) -> dict[int, ProbeAnswer]:
    """Returns each engine's answer to the probe with the trainer's scores, by the engine's number."""
    rollouts = [
        Rollout(request.token_ids, (generation.segment,), generation.finish)
        for generations in generated.values()
        for request, generation in zip(requests, generations, strict=True)
    ]
    scored = source.response_logprobs(rollouts, PROBE_TOKEN_BUDGET)
    size = len(requests)
    answers = {}
    for number, first in zip(generated, range(0, len(rollouts), size), strict=True):
        part = rollouts[first : first + size]
        answers[number] = ProbeAnswer(
            token_ids=list(chain.from_iterable(rollout.response_ids for rollout in part)),
            engine=list(chain.from_iterable(rollout.logprobs for rollout in part)),
            trainer=list(chain.from_iterable(scored[first : first + size])),
        )
    return answers
