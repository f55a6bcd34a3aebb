"""Rewards, lengths, clipping and progress of an update."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from bapo_lightning.callbacks.monitors.monitor import Metrics, Monitor, Update


class TrainingMonitor(Monitor):
    """Emits `train/{reward, shaped_reward, response_length, response_length_positive,
    response_length_negative, clip_fraction, clip_fraction_positive, clip_fraction_negative, learning_rate}`
    and `progress/{samples, tokens}` (rollouts and tokens generated so far).

    `train/reward` is the verdict before any length shaping, so that algorithms with and without it can be
    compared.
    """

    def __init__(self) -> None:
        self._num_samples = 0
        self._num_tokens = 0

    def measure(self, update: Update) -> Metrics:
        """Returns the metrics of one update."""
        self._num_samples += int(update.batch.metrics["rollout/num_samples"])
        self._num_tokens += int(update.batch.metrics["rollout/num_tokens"])
        samples = [sample for group in update.batch.groups for sample in group.samples]
        return (
            {
                "train/reward": fmean(sample.score.value for sample in samples),
                "train/shaped_reward": fmean(sample.reward for sample in samples),
                "train/response_length": fmean(sample.rollout.length for sample in samples),
                "train/learning_rate": update.module.last_learning_rate,
                "progress/samples": self._num_samples,
                "progress/tokens": self._num_tokens,
            }
            | clip_fractions(update)
            | length_by_sign(update)
        )

    def state_dict(self) -> dict[str, Any]:
        """Returns the running counts."""
        return {"num_samples": self._num_samples, "num_tokens": self._num_tokens}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the counts."""
        self._num_samples, self._num_tokens = state_dict["num_samples"], state_dict["num_tokens"]


def clip_fractions(update: Update) -> Metrics:
    """Share of all, of the positive and of the negative tokens whose gradient the bounds cut off."""
    advantage = update.tokens.advantage
    clipped = update.clipped.float()
    positive, negative = (advantage > 0).float(), (advantage < 0).float()
    return {
        "train/clip_fraction": clipped.mean(),
        "train/clip_fraction_positive": (clipped * positive).sum() / positive.sum(),
        "train/clip_fraction_negative": (clipped * negative).sum() / negative.sum(),
    }


def length_by_sign(update: Update) -> Metrics:
    """Mean response length in tokens of the samples with a positive and with a negative advantage."""
    positive, negative = "train/response_length_positive", "train/response_length_negative"
    lengths: dict[str, list[int]] = {positive: [], negative: []}
    for group in update.batch.groups:
        for sample, advantage in zip(group.samples, group.advantages, strict=True):
            if advantage:
                lengths[positive if advantage > 0 else negative].append(sample.rollout.length)
    return {name: fmean(values) for name, values in lengths.items() if values}
