"""Says so, or ends the run, when rollout engine and trainer disagree by more than rounding."""

from __future__ import annotations

from typing import Any, Literal, get_args

import lightning as L

from bapo_lightning.callbacks.monitor import Metrics, Monitor, Update
from bapo_lightning.errors import TrainingError

Action = Literal["warn", "stop"]
MEASURED = "mismatch/abs_logp_diff_mean"


class MismatchAlarm(Monitor):
    """Compares `mismatch/abs_logp_diff_mean` of each fresh batch with a threshold; emits `mismatch/alarms`, how many exceeded it so far.

    warn: one line when an alarm begins; batches that keep exceeding the threshold are only counted.
    stop: ends training after the update at hand like a signal would, with everything written and saved, and then raises
        `TrainingError`, so that the run counts as failed.

    Comes after `MismatchMonitor`.
    """

    def __init__(self, threshold: float, action: Action) -> None:
        """
        Args:
            threshold: nats, mean over tokens.
            action: what to do beyond it.

        Raises:
            ValueError: an unknown action.
        """
        if action not in get_args(Action):
            raise ValueError(f"action must be one of {', '.join(get_args(Action))}, got {action!r}")
        self.threshold = threshold
        self.action = action
        self._num_alarms = 0
        self._is_on = False
        self._reason: str | None = None

    def measure(self, update: Update) -> Metrics:
        """See `Monitor.measure`."""
        if MEASURED in update.metrics:
            difference = float(update.metrics[MEASURED])
            began, self._is_on = not self._is_on, not difference <= self.threshold  # NaN is no agreement
            self._num_alarms += self._is_on
            if self._is_on and self.action == "stop":
                self._reason = alarm_text(difference, self.threshold, update.version)
                update.module.trainer.should_stop = True
            elif self._is_on and began:
                print(f"warning: {alarm_text(difference, self.threshold, update.version)}", flush=True)
        return {"mismatch/alarms": self._num_alarms}

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """The run is saved and the engine closed: now it may fail.

        Raises:
            TrainingError: the alarm stopped the run.
        """
        if self._reason is not None:
            reason, self._reason = self._reason, None
            raise TrainingError(f"{reason}. The run was stopped (callbacks.mismatch_action=stop); checkpoints/last.ckpt is saved")

    def state_dict(self) -> dict[str, Any]:
        """The count."""
        return {"num_alarms": self._num_alarms, "is_on": self._is_on}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on counting."""
        self._num_alarms, self._is_on = state_dict["num_alarms"], state_dict["is_on"]


def alarm_text(difference: float, threshold: float, version: int) -> str:
    """Value, threshold, likely causes and what to do, in one line."""
    return (
        f"rollout engine and trainer differ by {difference:.3g} nats per token on a fresh batch of policy version {version} "
        f"(callbacks.mismatch_threshold={threshold:g}). Likely causes: the engine reports log-probs at another temperature or before top-p "
        "or top-k, holds stale weights, reuses a prefix cache of older weights, or computes in lower precision (up to 0.03 is usual "
        "for bfloat16). Fix the engine's settings; for a difference that must stay, write correction=truncated_is or correction=masked_is"
    )
