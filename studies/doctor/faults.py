"""Engines, a hand-over without proof, and verdicts, each with one fault from an update on.

A run of the package refuses most of these engines at once, since it proves every hand-over of weights
(`WeightSync.prove`); the logs of other trainers come from trainers that do not.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from lightning import Callback, LightningModule, Trainer

from bapo_lightning.rollout.engine import (
    MERGED,
    Generation,
    GenerationRequest,
    SamplingParams,
    Wanted,
    WeightSource,
)
from bapo_lightning.rollout.hf.engine import HFEngine
from bapo_lightning.rollout.weight_sync import Proof, SyncReport, WeightSync
from bapo_lightning.tiny_worlds.locks.task import opened
from bapo_lightning.types import Completion, Problem, Score, ScoreStatus, Segment

Fault = Literal["pinned", "layer", "lost", "temperature", "shifted"]


class BlindSync(WeightSync):
    """Hands weights over, and believes the engine."""

    def prove(self, proof: Proof) -> SyncReport:
        """Reports agreement without a comparison."""
        return SyncReport(proof.version, proof.transfer_seconds, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Kept:
    """Weights of which some stay as they were."""

    source: WeightSource
    held: dict[str, torch.Tensor]  # by name

    def named_weights(self, wanted: Wanted = MERGED) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields all weights, old ones for the names that are held."""
        for name, weight in self.source.named_weights(wanted):
            yield name, self.held.get(name, weight)


@dataclass(eq=False)
class SickEngine(HFEngine):
    """The in-process engine with one fault once the policy has reached the version `onset`."""

    fault: Fault = "pinned"
    onset: int = 0  # policy version
    temperature: float = 0.7  # of its sampling and its log-probs, if that is the fault
    layer: str = "layers.0."  # part of the names that are not taken any more, or never were (zeros)

    def load_weights(self, source: WeightSource, version: int) -> None:
        """Copies weights, all, some, or none, and reports the new version in any case."""
        is_old = "" if self.fault == "pinned" else self.layer
        parameters = {name: weight for name, weight in self._model.named_parameters() if is_old in name}
        if self.fault in ("pinned", "layer") and version >= self.onset and self.version >= 0:
            source = Kept(source, {name: weight.clone() for name, weight in parameters.items()})
        elif self.fault == "lost" and version >= self.onset:
            source = Kept(source, {name: torch.zeros_like(weight) for name, weight in parameters.items()})
        super().load_weights(source, version)

    def generate(self, requests: Sequence[GenerationRequest], sampling: SamplingParams) -> list[Generation]:
        """Samples as asked, or at its own temperature, or with log-probs of the neighbouring tokens."""
        if self.fault == "temperature" and self.version >= self.onset:
            sampling = replace(sampling, temperature=self.temperature)
        generations = super().generate(requests, sampling)
        if self.fault == "shifted" and self.version >= self.onset:
            generations = [replace(each, segment=_shifted(each.segment)) for each in generations]
        return generations


def _shifted(segment: Segment) -> Segment:
    """Log-probs of a segment, each at the place of the token before it."""
    values = segment.logprobs
    return replace(segment, logprobs=values[1:] + values[:1])


@dataclass
class Erring:
    """The verdicts of the locks, some of them turned round at random; a reward of `reward._target_`."""

    false_positive: float = 0.0  # share of the wrong answers that are accepted
    false_negative: float = 0.0  # share of the right answers that are refused
    seed: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def __call__(self, problems: list[Problem], completions: list[Completion]) -> list[Score]:
        """Scores each completion."""
        return [self._turned(score) for score in opened(problems, completions)]

    def _turned(self, score: Score) -> Score:
        is_right = score.value > 0
        if self._random.random() >= (self.false_negative if is_right else self.false_positive):
            return score
        value, status = (0.0, ScoreStatus.WRONG) if is_right else (1.0, ScoreStatus.CORRECT)
        return replace(score, value=value, status=status)


class Overflow(Callback):
    """Infinite gradients in every fourth update from `onset` on, as numbers of 16 bits give them."""

    def __init__(self, onset: int) -> None:
        self.onset = onset  # update
        self._is_due = False

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Chooses whether this update overflows."""
        self._is_due = batch_idx >= self.onset and (batch_idx - self.onset) % 4 == 0

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Turns the gradient of one weight into infinity."""
        if self._is_due:
            gradient = next(each.grad for each in pl_module.parameters() if each.grad is not None)
            gradient.view(-1)[0] = math.inf
