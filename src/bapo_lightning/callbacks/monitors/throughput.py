"""Speed of an update."""

from __future__ import annotations

import time

import lightning as L

from bapo_lightning.callbacks.monitors.monitor import Metrics, Monitor, Update


class ThroughputMonitor(Monitor):
    """Emits `time/step_seconds` (wall time since the end of the previous update) and
    `train/tokens_per_second` (response tokens trained per second of the update itself). The speed of
    generation and the other `time/*` come with the batch.
    """

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Starts the clock."""
        self._last = time.perf_counter()

    def measure(self, update: Update) -> Metrics:
        """Returns the metrics of one update."""
        now = time.perf_counter()
        elapsed, self._last = now - self._last, now
        tokens_per_second = update.batch.num_tokens / update.metrics["time/update_seconds"]
        return {"time/step_seconds": elapsed, "train/tokens_per_second": tokens_per_second}
