"""Entropy of the policy, its distance from the behaviour policy, and the paper's Entropy-Clip Rule."""

from __future__ import annotations

from dataclasses import dataclass

from bapo_lightning.callbacks.monitors.monitor import Metrics, Monitor, MonitoredUpdate
from bapo_lightning.data.batches.batch import TrainBatch
from bapo_lightning.modules.bapo_module import BapoModule
from bapo_lightning.objectives.divergence import k3
from bapo_lightning.objectives.entropy_rule import predicted_entropy_change, quadrant_masses
from bapo_lightning.system.values import CountOrZero


class EntropyMonitor(Monitor):
    """Emits `policy/entropy` (nats per token, before the update) and `policy/approx_kl` (k3 estimate of
    KL(behaviour || policy), over the tokens that the policy sampled).
    """

    needs = frozenset({"logp", "behaviour_logp", "origin", "entropy"})

    def measure(self, update: MonitoredUpdate) -> Metrics:
        """Metrics of one update."""
        tokens = update.tokens
        kl = k3(tokens.logp - tokens.behaviour_logp).where(tokens.is_sampled, 0.0)
        return {
            "policy/entropy": tokens.entropy.mean(),
            "policy/approx_kl": kl.sum() / tokens.is_sampled.sum(),
        }


@dataclass(eq=False)
class EntropyRuleMonitor(Monitor):
    """Emits `entropy_rule/predicted_delta` (nats), shares of the unclipped advantages in Table 4's quadrants
    and, every `every` updates, `entropy_rule/measured_delta` (nats): this update's change of the mean entropy
    of the same tokens, at the cost of one more forward pass.

    The rule holds for steps of the natural gradient; under AdamW compare signs and correlation, not sizes.
    """

    needs = frozenset({"logp", "advantage", "slope", "entropy"})
    every: CountOrZero  # updates between two measurements, the first update included; 0: never

    def measure(self, update: MonitoredUpdate) -> Metrics:
        """Metrics of one update."""
        tokens = update.tokens
        alive_tokens = (tokens.logp, tokens.advantage, ~update.clipped)
        masses = quadrant_masses(*alive_tokens)
        metrics: Metrics = {f"entropy_rule/{name}": mass for name, mass in masses._asdict().items()}
        predicted = predicted_entropy_change(*alive_tokens, update.module.last_learning_rate)
        metrics["entropy_rule/predicted_delta"] = predicted
        if self._is_due(update.index):
            entropy = update.module.mean_entropy(update.share or update.batch)
            metrics["entropy_rule/measured_delta"] = entropy - tokens.entropy.mean()
        return metrics

    def assist(self, module: BapoModule, share: TrainBatch, index: int) -> None:
        """Takes part in the measurement."""
        if self._is_due(index):
            module.mean_entropy(share)

    def _is_due(self, index: int) -> bool:
        return bool(self.every) and index % self.every == 0
