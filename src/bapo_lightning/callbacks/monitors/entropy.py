"""Entropy of the policy and its distance from the behaviour policy."""

from __future__ import annotations

from bapo_lightning.callbacks.monitors.monitor import Metrics, Monitor, Update
from bapo_lightning.objectives.divergence import k3


class EntropyMonitor(Monitor):
    """Emits `policy/entropy` (nats per token, before the update) and `policy/approx_kl` (k3 estimate of
    KL(behaviour || policy)).
    """

    def measure(self, update: Update) -> Metrics:
        """Returns the metrics of one update."""
        return {
            "policy/entropy": update.tokens.entropy.mean(),
            "policy/approx_kl": k3(update.tokens.logp - update.tokens.behaviour_logp).mean(),
        }
