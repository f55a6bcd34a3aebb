"""Disagreement of engine and trainer about tokens of the current weights, which should be rounding only."""

from __future__ import annotations

from bapo_lightning.callbacks.monitors.monitor import Metrics, Monitor, Update
from bapo_lightning.objectives.divergence import mismatch


class MismatchMonitor(Monitor):
    """Emits `mismatch/{abs_logp_diff_mean, abs_logp_diff_max, logp_diff_mean, kl}` (nats) and
    `mismatch/ratio_max`, once per rollout batch.

    They cover the first minibatch, in updates whose data has age 0. Where the data module scored the whole
    batch when it entered training, its numbers stand instead, and this monitor emits nothing.
    """

    def measure(self, update: Update) -> Metrics:
        """Returns the metrics of one update."""
        scored_at_entry = any(
            sample.proximal_logprobs is not None for group in update.batch.groups for sample in group.samples
        )
        oldest, _ = update.batch.version_range()
        if scored_at_entry or oldest < update.version:
            return {}
        return {
            f"mismatch/{name}": value
            for name, value in mismatch(update.tokens.logp, update.tokens.behaviour_logp).items()
        }
