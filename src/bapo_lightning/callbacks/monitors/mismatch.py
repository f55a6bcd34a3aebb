"""Disagreement of engine and trainer, ratios to what the engine sampled from, and their correction."""

from __future__ import annotations

from lightning import LightningModule, Trainer

from bapo_lightning.callbacks.monitors.monitor import Metrics, Monitor, MonitoredUpdate
from bapo_lightning.callbacks.monitors.tokens import context_lengths
from bapo_lightning.modules.bapo_module import BapoModule
from bapo_lightning.objectives.buckets import mismatch_by_age, mismatch_by_depth
from bapo_lightning.objectives.corrections.tokens import effective_sample_size, engine_gap
from bapo_lightning.objectives.divergence import mismatch, ratio_spread


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
        found = {
            **mismatch_by_age(*scores, tokens.age, tokens.is_sampled),
            **mismatch_by_depth(*scores, depth, tokens.is_sampled),
            **self._when_fresh(update),
        }
        return {f"mismatch/{name}": value for name, value in found.items()}

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
        found = ratio_spread(tokens.logp, tokens.behaviour_logp, tokens.is_sampled)
        return {f"ratio/{name}": value for name, value in found.items()}


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
        found: Metrics = {}
        if update.module.step_scale is not None:
            found["correction/step_scale"] = update.module.last_step_scale
        if update.module.correction is None:
            return found
        weight, gap = update.tokens.correction, engine_gap(update.tokens)
        masked = weight == 0
        truncated = (weight < gap) & ~masked
        return found | {
            "correction/weight_mean": weight.mean(),
            "correction/weight_min": weight.min(),
            "correction/masked_fraction": masked.float().mean(),
            "correction/truncated_fraction": truncated.float().mean(),
            "correction/effective_sample_size": effective_sample_size(weight),
        }
