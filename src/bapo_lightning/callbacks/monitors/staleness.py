"""Age of an update's data."""

from __future__ import annotations

from statistics import fmean

from bapo_lightning.callbacks.monitors.monitor import Metrics, Monitor, Update


class StalenessMonitor(Monitor):
    """Emits `staleness/{age_mean, age_max}` (per token: updates between the version that sampled it and the
    version that was trained), the two parts of the mean `staleness/age_generating_mean` (until the token's
    group was complete) and `staleness/age_queueing_mean` (from then on), `staleness/segments_mean` (per
    rollout; above 1 where rollouts were resumed) and `staleness/masked_tokens` (number of tokens too old to
    be trained on).
    """

    def measure(self, update: Update) -> Metrics:
        """Returns the metrics of one update."""
        age = update.version - update.tokens.version
        batch = update.batch
        lengths = iter(batch.response_lengths)
        tokens = [sum(next(lengths) for _ in group.samples) for group in batch.groups]
        queueing = sum(
            (update.version - group.ready_version) * count
            for group, count in zip(batch.groups, tokens, strict=True)
        )
        mean, queueing_mean = age.float().mean(), queueing / batch.num_tokens
        return {
            "staleness/age_mean": mean,
            "staleness/age_max": age.max(),
            "staleness/age_generating_mean": mean - queueing_mean,
            "staleness/age_queueing_mean": queueing_mean,
            "staleness/segments_mean": fmean(len(rollout.segments) for rollout in batch.rollouts),
            "staleness/masked_tokens": batch.num_masked_tokens,
        }
