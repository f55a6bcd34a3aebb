"""Entropy of the policy, its distance from the behaviour policy, and the paper's Entropy-Clip Rule."""

from __future__ import annotations

from dataclasses import dataclass

from lightning import LightningModule, Trainer

from bapo_lightning.callbacks.monitors.monitor import Metrics, Monitor, MonitoredUpdate, context_lengths
from bapo_lightning.data.batches.batch import TrainBatch
from bapo_lightning.modules.bapo_module import BapoModule
from bapo_lightning.objectives.corrections.tokens import effective_sample_size, engine_gap
from bapo_lightning.objectives.divergence import (
    k3,
    mismatch,
    mismatch_by_age,
    mismatch_by_depth,
    ratio_spread,
)
from bapo_lightning.objectives.entropy_rule import predicted_entropy_change, quadrant_masses
from bapo_lightning.objectives.surrogate import clipped_mask
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
        alive_tokens = (tokens.logp, tokens.advantage, ~clipped_mask(tokens.slope, tokens.advantage))
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


class MismatchMonitor(Monitor):
    """Emits `mismatch/*`: by age and by depth of context in every update; over all tokens only on the first
    minibatch of a rollout batch, whose data has age 0, unless the data module scored the whole batch when it
    entered training.
    """

    needs = frozenset({"logp", "behaviour_logp", "origin", "age", "sequence", "position"})

    def measure(self, update: MonitoredUpdate) -> Metrics:
        """Metrics of one update."""
        tokens = update.tokens
        scores = tokens.logp, tokens.behaviour_logp
        depth = context_lengths(update.batch.rollouts, tokens)
        means = {
            **mismatch_by_age(*scores, tokens.age, tokens.is_sampled),
            **mismatch_by_depth(*scores, depth, tokens.is_sampled),
            **self._when_fresh(update),
        }
        return {f"mismatch/{name}": value for name, value in means.items()}

    def _when_fresh(self, update: MonitoredUpdate) -> Metrics:
        scored_at_entry = any(
            "proximal_logp" in sample.scores for group in update.batch.groups for sample in group.samples
        )
        oldest, _ = update.batch.version_range()
        if scored_at_entry or oldest < update.version:
            return {}
        sampled = update.tokens.is_sampled
        return {**mismatch(update.tokens.logp[sampled], update.tokens.behaviour_logp[sampled])}


class RatioMonitor(Monitor):
    """Emits `ratio/effective_sample_size` and `ratio/chi_square` of pi / pi_behaviour, before any correction
    and any bounds, over the tokens that the policy sampled.
    """

    needs = frozenset({"logp", "behaviour_logp", "origin"})

    def measure(self, update: MonitoredUpdate) -> Metrics:
        """Metrics of one update."""
        tokens = update.tokens
        spread = ratio_spread(tokens.logp, tokens.behaviour_logp, tokens.is_sampled)
        return {f"ratio/{name}": value for name, value in spread.items()}


class CorrectionMonitor(Monitor):
    """Emits `correction/*` of the weights in a run with a correction, as shares of tokens: masked weights are
    0, truncated ones below pi_proximal / pi_behaviour; and `correction/step_scale` (factor of the learning
    rate) if there is a rule for it.
    """

    needs = frozenset({"correction", "proximal_logp", "behaviour_logp"})

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Needs no tokens if there is no correction."""
        if isinstance(pl_module, BapoModule) and pl_module.correction is None:
            self.needs = frozenset()

    def measure(self, update: MonitoredUpdate) -> Metrics:
        """Metrics of one update."""
        metrics: Metrics = {}
        if update.module.step_scale is not None:
            metrics["correction/step_scale"] = update.module.last_step_scale
        if update.module.correction is None:
            return metrics
        weight, gap = update.tokens.correction, engine_gap(update.tokens)
        masked = weight == 0
        truncated = (weight < gap) & ~masked
        return metrics | {
            "correction/weight_mean": weight.mean(),
            "correction/weight_min": weight.min(),
            "correction/masked_fraction": masked.float().mean(),
            "correction/truncated_fraction": truncated.float().mean(),
            "correction/effective_sample_size": effective_sample_size(weight),
        }
