"""Costs and losses of generation between two updates, and their metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields

from bapo_lightning.rollout.weight_sync import SyncReport
from bapo_lightning.types import FinishReason, Group, ScoreStatus


@dataclass(slots=True)
class RolloutStatistics:
    """Sums since the last `take`; `metrics` turns them into metrics."""

    rollout_seconds: float = 0.0
    reward_seconds: float = 0.0
    # Of the engine, while it waited for room, weights or validation; 0 where generation is synchronous.
    idle_seconds: float = 0.0
    num_passes: int = 0
    num_tokens: int = 0
    num_rollouts: int = 0  # ended
    num_cut: int = 0  # rollouts ended at the token limit, or at the limit of segments
    num_resumed: int = 0  # resumes of a rollout that was stopped at the token budget of a pass
    num_resumed_tokens: int = 0  # response tokens that the engine had to read again for them
    num_reward_timeouts: int = 0
    num_reward_failures: int = 0  # answers on which the verifier broke
    num_unparsable: int = 0  # responses without a final answer
    num_uniform_groups: int = 0  # groups whose scores are all equal, admitted or not
    num_dropped_groups: int = 0  # groups sampled but not admitted to training
    num_evicted_groups: int = 0  # groups thrown away because they were too old or would become so
    num_wasted_tokens: int = 0  # of the groups dropped and evicted

    def count_groups(self, groups: Sequence[Group]) -> None:
        """Counts groups that were finished and scored."""
        samples = [sample for group in groups for sample in group.samples]
        self.num_rollouts += len(samples)
        self.num_cut += sum(sample.rollout.finish is FinishReason.LENGTH for sample in samples)
        statuses = Counter(sample.score.status for sample in samples)
        self.num_reward_timeouts += statuses[ScoreStatus.TIMEOUT]
        self.num_reward_failures += statuses[ScoreStatus.FAILED]
        self.num_unparsable += statuses[ScoreStatus.UNPARSABLE]
        self.num_uniform_groups += sum(group.is_uniform for group in groups)

    def take(self) -> RolloutStatistics:
        """Returns the sums so far and starts again at zero."""
        taken = RolloutStatistics(**{f.name: getattr(self, f.name) for f in fields(self)})
        for f in fields(self):
            setattr(self, f.name, f.default)
        return taken

    def metrics(self) -> dict[str, float]:
        """Metrics of the generation since the last update; zeros when there was none."""
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
    """Metrics of the weight syncs since the last update; the log-prob differences are the last sync's."""
    metrics = {"time/sync_seconds": sum(report.seconds for report in reports)}
    if reports:
        metrics |= {
            "sync/transfer_seconds": sum(report.transfer_seconds for report in reports),
            "sync/logp_diff_mean": reports[-1].mean_logprob_difference,
            "sync/logp_diff_max": reports[-1].max_logprob_difference,
        }
    return metrics
