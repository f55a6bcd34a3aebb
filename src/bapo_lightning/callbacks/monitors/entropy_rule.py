"""The paper's Entropy-Clip Rule (Eq. 6-7) beside the measured change of entropy."""

from __future__ import annotations

from bapo_lightning.callbacks.monitors.monitor import Metrics, Monitor, Update
from bapo_lightning.data.batches.batch import TrainBatch
from bapo_lightning.modules.bapo_module import BapoModule
from bapo_lightning.objectives.entropy_rule import predicted_entropy_change, quadrant_masses
from bapo_lightning.values import CountOrZero


class EntropyRuleMonitor(Monitor):
    """Emits `entropy_rule/predicted_delta` (nats), `entropy_rule/{positive,negative}_{high,low}_prob` (shares
    of the unclipped advantage mass in Table 4's quadrants) and, every `every` updates,
    `entropy_rule/measured_delta` (nats): this update's change of the mean entropy of the same tokens.
    Measuring it costs one more forward pass.

    The rule is derived for plain gradient ascent; under AdamW compare signs and correlation, not sizes.
    """

    def __init__(self, every: CountOrZero) -> None:
        """Measures in every `every`-th update, the first included; never with 0."""
        self.every = every

    def measure(self, update: Update) -> Metrics:
        """Returns the metrics of one update."""
        tokens = update.tokens
        alive = ~update.clipped
        learning_rate = update.module.last_learning_rate
        masses = quadrant_masses(tokens.logp, tokens.advantage, alive)
        metrics: Metrics = {f"entropy_rule/{name}": mass for name, mass in masses._asdict().items()}
        metrics["entropy_rule/predicted_delta"] = predicted_entropy_change(
            tokens.logp, tokens.advantage, alive, learning_rate
        )
        if self._is_due(update.index):
            metrics["entropy_rule/measured_delta"] = (
                update.module.mean_entropy(update.share or update.batch) - tokens.entropy.mean()
            )
        return metrics

    def assist(self, module: BapoModule, share: TrainBatch, index: int) -> None:
        """Takes part in the measurement."""
        if self._is_due(index):
            module.mean_entropy(share)

    def _is_due(self, index: int) -> bool:
        return bool(self.every) and index % self.every == 0
