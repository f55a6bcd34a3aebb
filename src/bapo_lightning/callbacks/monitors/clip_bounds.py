"""Clipping bounds of an update."""

from __future__ import annotations

import torch

from bapo_lightning.callbacks.monitors.monitor import Metrics, Monitor, Update


class ClipBoundsMonitor(Monitor):
    """Emits `bapo/clip_low`, `bapo/clip_high` (ratios; their mean when every micro-batch has its own bounds)
    and `bapo/target_met` (share of the update's searches that reached their target; 1 for fixed bounds).
    """

    def measure(self, update: Update) -> Metrics:
        """Returns the metrics of one update."""
        met = torch.stack([search.met for search in update.searches]).float().mean()
        return {"bapo/clip_low": update.low, "bapo/clip_high": update.high, "bapo/target_met": met}
