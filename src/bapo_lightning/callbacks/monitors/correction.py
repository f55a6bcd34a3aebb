"""Effect of the mismatch correction on the tokens of an update."""

from __future__ import annotations

from bapo_lightning.callbacks.monitors.monitor import Metrics, Monitor, Update
from bapo_lightning.objectives.correction import effective_sample_size
from bapo_lightning.objectives.surrogate import importance_ratio


class CorrectionMonitor(Monitor):
    """Emits, in every update of a run with a correction, `correction/{weight_mean, weight_min}`,
    `correction/masked_fraction` (share of the tokens with weight 0), `correction/truncated_fraction` (share
    with a weight below pi_proximal / pi_behaviour, but not 0) and `correction/effective_sample_size` (as a
    share of the tokens, see `objectives.correction`).
    """

    def measure(self, update: Update) -> Metrics:
        """Returns the metrics of one update."""
        correction, tokens = update.module.correction, update.tokens
        if correction is None:
            return {}
        weight = correction(tokens.proximal_logp - tokens.behaviour_logp)
        masked = weight == 0
        truncated = (weight < importance_ratio(tokens.proximal_logp, tokens.behaviour_logp)) & ~masked
        return {
            "correction/weight_mean": weight.mean(),
            "correction/weight_min": weight.min(),
            "correction/masked_fraction": masked.float().mean(),
            "correction/truncated_fraction": truncated.float().mean(),
            "correction/effective_sample_size": effective_sample_size(weight),
        }
