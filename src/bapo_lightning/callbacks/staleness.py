"""How old the data of an update was when it was consumed."""

from __future__ import annotations

from statistics import fmean

from bapo_lightning.callbacks.monitor import Metrics, Monitor, Update


class StalenessMonitor(Monitor):
    """Emits `staleness/age_mean` and `staleness/age_max` (per token: updates between the version that sampled it and the version that was
    trained) and `staleness/segments_mean` (per rollout; above 1 where rollouts were resumed).
    """

    def measure(self, update: Update) -> Metrics:
        """See `Monitor.measure`."""
        age = update.version - update.tokens.version
        return {
            "staleness/age_mean": age.float().mean(),
            "staleness/age_max": age.max(),
            "staleness/segments_mean": fmean(len(rollout.segments) for rollout in update.batch.rollouts),
        }
