"""Disagreement between engine and trainer about tokens that the current weights sampled: at age 0 it should be rounding only."""

from __future__ import annotations

from bapo_lightning.callbacks.monitor import Metrics, Monitor, Update
from bapo_lightning.objectives.divergence import k3


class MismatchMonitor(Monitor):
    """Emits `mismatch/abs_logp_diff_mean` (nats), `mismatch/ratio_max` and `mismatch/kl` (k3), in updates whose data has age 0."""

    def measure(self, update: Update) -> Metrics:
        """See `Monitor.measure`."""
        oldest, _ = update.batch.version_range()
        if oldest < update.version:
            return {}
        difference = update.tokens.logp - update.tokens.behaviour_logp
        return {
            "mismatch/abs_logp_diff_mean": difference.abs().mean(),
            "mismatch/ratio_max": difference.exp().max(),
            "mismatch/kl": k3(difference).mean(),
        }
