"""Disagreement between engine and trainer about tokens that the current weights sampled: at age 0 it should
be rounding only.
"""

from __future__ import annotations

from bapo_lightning.callbacks.monitors.monitor import Metrics, Monitor, Update
from bapo_lightning.objectives.mismatch import mismatch


class MismatchMonitor(Monitor):
    """Emits `mismatch/{abs_logp_diff_mean, abs_logp_diff_max, logp_diff_mean, kl}` (nats) and
    `mismatch/ratio_max`, once per rollout batch.

    Over the whole batch where it was scored when it entered training (the data module's numbers, which are
    left as they are), else over the first minibatch, in updates whose data has age 0.
    """

    def measure(self, update: Update) -> Metrics:
        """See `Monitor.measure`."""
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
