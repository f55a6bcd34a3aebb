"""Rewards, lengths, clipping, age of the data, progress and speed of an update."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import torch
from lightning import LightningModule, Trainer
from torch import Tensor

from bapo_lightning.callbacks.monitors.monitor import Metrics, Monitor, MonitoredUpdate
from bapo_lightning.data.rollouts.observer import unread
from bapo_lightning.objectives.surrogate import clipped_fractions
from bapo_lightning.system.printable import say
from bapo_lightning.types import FinishReason, Origin, Sample, ScoreStatus

_CLIPPED = ("train/clip_fraction", "train/clip_fraction_positive", "train/clip_fraction_negative")


class TrainingMonitor(Monitor):
    """Emits `train/*` and `progress/{samples, tokens}` (rollouts and tokens generated so far).

    `train/reward` is the verdict before any length shaping, so that algorithms with and without it can be
    compared. Answers of an expert count in neither rewards nor lengths.
    """

    needs = frozenset({"slope", "advantage"})

    def __init__(self) -> None:
        self._num_samples = 0
        self._num_tokens = 0

    def measure(self, update: MonitoredUpdate) -> Metrics:
        """Metrics of one update."""
        self._num_samples += int(update.batch.metrics["rollout/num_samples"])
        self._num_tokens += int(update.batch.metrics["rollout/num_tokens"])
        samples = [each for group in update.batch.groups for each in group.samples]
        samples = [sample for sample in samples if sample.rollout.aging_segments]
        if update.index == 0:
            self._warn(update, samples)
        clipped = clipped_fractions(update.tokens.slope, update.tokens.advantage)
        return {
            "train/reward": fmean(sample.score.value for sample in samples),
            "train/shaped_reward": fmean(sample.reward for sample in samples),
            "train/right_and_finished": fmean(map(is_right_and_finished, samples)),
            "train/response_length": fmean(sample.rollout.length for sample in samples),
            "train/learning_rate": update.module.last_learning_rate,
            "progress/samples": self._num_samples,
            "progress/tokens": self._num_tokens,
            **dict(zip(_CLIPPED, clipped, strict=True)),
            **length_by_sign(update),
        }

    def _warn(self, update: MonitoredUpdate, samples: Sequence[Sample]) -> None:
        """Warns at the first batch if its answers cannot be read, or if cut answers earn nothing."""
        counts = [update.batch.metrics[f"rollout/{name}"] for name in ("num_samples", "cut", "unparsable")]
        has_right = any(sample.score.value > 0 for sample in samples)
        sampler = update.module.trainer.datamodule.sampler  # type: ignore[attr-defined]
        if said := unread(counts, sampler.limits, has_right):
            say(f"warning: {said}")

    def state_dict(self) -> dict[str, Any]:
        """Returns the running counts."""
        return {"num_samples": self._num_samples, "num_tokens": self._num_tokens}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the counts."""
        self._num_samples, self._num_tokens = state_dict["num_samples"], state_dict["num_tokens"]


def is_right_and_finished(sample: Sample) -> bool:
    """Whether the verifier accepted a response that the policy ended itself. A response that gives the right
    answer but continues until a limit cuts it is right but not finished.
    """
    return sample.score.status is ScoreStatus.CORRECT and sample.rollout.finish is FinishReason.STOP


def length_by_sign(update: MonitoredUpdate) -> Metrics:
    """Mean response length in tokens of the samples with a positive and with a negative advantage."""
    positive, negative = "train/response_length_positive", "train/response_length_negative"
    lengths: dict[str, list[int]] = {positive: [], negative: []}
    for group in update.batch.groups:
        for sample, advantage in zip(group.samples, group.advantages, strict=True):
            if advantage and sample.is_trained and sample.rollout.aging_segments:
                lengths[positive if advantage > 0 else negative].append(sample.rollout.length)
    return {name: fmean(values) for name, values in lengths.items() if values}


class StalenessMonitor(Monitor):
    """Emits `staleness/*`: ages per token, in updates from the version that sampled it to the version that
    was trained, split at the completion of the token's group. Tokens of an expert have no age.

    With `regime.max_age`, `staleness/bound_reached` is the largest age so far as a share of it.
    """

    needs = frozenset({"age", "origin"})

    def __init__(self) -> None:
        self._max_age = 0  # of the regime, in updates; 0 without a bound that could be missed
        self._oldest: Tensor | int = 0  # largest age so far, in updates

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Reads the age that the regime allows; only the rank that measures has a regime."""
        regime = getattr(trainer.datamodule, "regime", None)  # type: ignore[attr-defined]
        self._max_age = getattr(regime, "max_age", None) or 0

    def measure(self, update: MonitoredUpdate) -> Metrics:
        """Metrics of one update."""
        has_age = update.tokens.origin != Origin.EXPERT
        age = update.tokens.age.where(has_age, 0)
        batch = update.batch
        aging = [
            length if rollout.aging_segments else 0
            for rollout, length in zip(batch.rollouts, batch.response_lengths, strict=True)
        ]
        waits = [update.version - group.ready_version for group in batch.groups for _ in group.samples]
        queueing = sum(wait * count for wait, count in zip(waits, aging, strict=True))
        mean, queueing_mean = age.sum() / has_age.sum(), queueing / sum(aging)
        return {
            "staleness/age_mean": mean,
            "staleness/age_max": age.max(),
            "staleness/age_generating_mean": mean - queueing_mean,
            "staleness/age_queueing_mean": queueing_mean,
            "staleness/segments_mean": fmean(rollout.num_versions for rollout in batch.rollouts),
            "staleness/masked_tokens": batch.num_masked_tokens,
            **self._bound_reached(age.max()),
        }

    def state_dict(self) -> dict[str, Any]:
        """Returns the largest age so far."""
        return {"oldest": int(self._oldest)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores it."""
        self._oldest = state_dict["oldest"]

    def _bound_reached(self, oldest: Tensor) -> Metrics:
        if not self._max_age:
            return {}
        self._oldest = torch.clamp(oldest, min=self._oldest)
        return {"staleness/bound_reached": self._oldest / self._max_age}


class ThroughputMonitor(Monitor):
    """Emits `time/step_seconds` (wall time since the end of the previous update) and
    `train/tokens_per_second` (of the update itself); other times and speeds come with the batch.
    """

    needs = frozenset[str]()

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock."""
        self._last = time.perf_counter()

    def measure(self, update: MonitoredUpdate) -> Metrics:
        """Metrics of one update."""
        now = time.perf_counter()
        elapsed, self._last = now - self._last, now
        tokens_per_second = update.batch.num_tokens / update.metrics["time/update_seconds"]
        return {"time/step_seconds": elapsed, "train/tokens_per_second": tokens_per_second}
