"""What generation cost and lost between two updates, and the metrics made of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields

from bapo_lightning.rollout.weight_sync import SyncReport
from bapo_lightning.types import FinishReason, Group, ScoreStatus


@dataclass(slots=True)
class RolloutStatistics:
    """Sums since they were last taken; ratios are made where they are logged."""

    rollout_seconds: float = 0.0
    reward_seconds: float = 0.0
    # of the engine, while it waited for room, weights or validation; 0 where generation is synchronous
    idle_seconds: float = 0.0
    num_passes: int = 0
    num_tokens: int = 0
    num_rollouts: int = 0  # ended
    num_cut: int = 0  # of them at the token limit, or at the limit of segments
    num_resumed: int = 0  # continuations of a rollout that was stopped at a pass's budget
    num_resumed_tokens: int = 0  # tokens in front of those, which the engine had to read again
    num_reward_timeouts: int = 0
    num_reward_failures: int = 0  # answers on which the verifier broke
    num_unparsable: int = 0  # responses without a final answer
    num_uniform_groups: int = 0  # groups whose scores are all equal, whatever was then done with them
    num_dropped_groups: int = 0  # groups sampled but not admitted to training
    num_evicted_groups: int = 0  # groups thrown away because they were, or had to become, too old
    num_wasted_tokens: int = 0  # of the groups dropped and evicted

    def count_groups(self, groups: Sequence[Group]) -> None:
        """Count groups that were finished and scored."""
        samples = [sample for group in groups for sample in group.samples]
        self.num_rollouts += len(samples)
        self.num_cut += sum(sample.rollout.finish is FinishReason.LENGTH for sample in samples)
        statuses = Counter(sample.score.status for sample in samples)
        self.num_reward_timeouts += statuses[ScoreStatus.TIMEOUT]
        self.num_reward_failures += statuses[ScoreStatus.FAILED]
        self.num_unparsable += statuses[ScoreStatus.UNPARSABLE]
        self.num_uniform_groups += sum(group.is_uniform for group in groups)

    def take(self) -> RolloutStatistics:
        """Return the sums so far and start again at zero."""
        taken = RolloutStatistics(**{f.name: getattr(self, f.name) for f in fields(self)})
        for f in fields(self):
            setattr(self, f.name, f.default)
        return taken

    def metrics(self) -> dict[str, float]:
        """Metrics of what was generated since the last update; zeros when nothing was."""
        metrics: dict[str, float] = {
            "time/rollout_seconds": self.rollout_seconds,
            "time/reward_seconds": self.reward_seconds,
            "time/engine_idle_seconds": self.idle_seconds,
            "rollout/dropped": self.num_dropped_groups,
            "rollout/evicted": self.num_evicted_groups,
            "rollout/resumed": self.num_resumed,
            "rollout/resumed_tokens": self.num_resumed_tokens,
            "rollout/wasted_tokens": self.num_wasted_tokens,
            "rollout/cut": self.num_cut,
            "rollout/reward_timeouts": self.num_reward_timeouts,
            "rollout/reward_failures": self.num_reward_failures,
            "rollout/unparsable": self.num_unparsable,
            "rollout/uniform_groups": self.num_uniform_groups,
            "rollout/passes": self.num_passes,
            "rollout/num_samples": self.num_rollouts,
            "rollout/num_tokens": self.num_tokens,
        }
        if self.rollout_seconds > 0:
            metrics["rollout/tokens_per_second"] = self.num_tokens / self.rollout_seconds
        return metrics


def sync_metrics(reports: Sequence[SyncReport]) -> dict[str, float]:
    """Time of the weight syncs since the last update, and how far engine and trainer were apart after the
    last one.
    """
    metrics = {"time/sync_seconds": sum(report.seconds for report in reports)}
    if reports:
        metrics |= {
            "sync/transfer_seconds": sum(report.transfer_seconds for report in reports),
            "sync/logp_diff_mean": reports[-1].mean_logprob_difference,
            "sync/logp_diff_max": reports[-1].max_logprob_difference,
        }
    return metrics
