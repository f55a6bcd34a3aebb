"""Costs and losses of generation between two updates, and their metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from bapo_lightning.data.rollouts.observer import AnyGroup, Groups, Moves, Observer, Running
from bapo_lightning.data.rollouts.running_group import SampledPass
from bapo_lightning.rollout.weight_sync import SyncReport
from bapo_lightning.types import FinishReason, Group, ScoreStatus

MOST = 0.75  # of the answers: a weak policy that still learns has fewer unreadable answers


@dataclass(slots=True)
class RolloutStatistics(Observer):
    """Sums since the last `take`; each is a metric, `time/<name>` if in seconds, else `rollout/<name>`."""

    rollout_seconds: float = 0.0
    reward_seconds: float = 0.0
    # Time in which the engine had nothing to sample: it waited for room, weights or validation, and took
    # weights; 0 if generation is synchronous.
    engine_idle_seconds: float = 0.0
    dropped: int = 0  # groups sampled but not admitted to training
    evicted: int = 0  # groups dropped because they were too old or would become too old
    resumed: int = 0  # resumes of a rollout that was stopped at the token budget of a pass
    resumed_tokens: int = 0  # response tokens that the engine had to read again for them
    wasted_tokens: int = 0  # of groups dropped, evicted and sampled again
    cut: int = 0  # rollouts ended at the token limit, or at the limit of segments
    reward_timeouts: int = 0
    reward_failures: int = 0  # answers on which the verifier broke
    unparsable: int = 0  # responses without a final answer
    filtered_samples: int = 0  # responses that only their group's baseline counts
    uniform_groups: int = 0  # groups whose scores are all equal, admitted or not
    expert_traces: int = 0  # put into groups; no engine sampled them
    hinted_groups: int = 0  # sampled again with a hint, since every answer was wrong
    passes: int = 0
    added_passes: int = 0  # passes among them that a followed schedule does not have
    decoding_steps: int = 0  # of a stream's calls
    num_samples: int = 0  # ended samples
    num_tokens: int = 0

    def count_groups(self, groups: Sequence[Group]) -> None:
        """Counts groups that were finished and scored."""
        every = [sample for group in groups for sample in group.samples]
        samples = [sample for sample in every if sample.rollout.aging_segments]
        self.expert_traces += len(every) - len(samples)
        self.num_samples += len(samples)
        self.cut += sum(sample.rollout.finish is FinishReason.LENGTH for sample in samples)
        statuses = Counter(sample.score.status for sample in samples)
        self.reward_timeouts += statuses[ScoreStatus.TIMEOUT]
        self.reward_failures += statuses[ScoreStatus.FAILED]
        self.unparsable += statuses[ScoreStatus.UNPARSABLE]
        self.filtered_samples += sum(not sample.is_trained for sample in every)
        self.uniform_groups += sum(group.is_uniform for group in groups)

    def count_wait(self, seconds: float, sampled: float) -> None:
        """Counts a wait of the engine, whose stream continued during a probe for `sampled` seconds of it."""
        self.rollout_seconds += sampled
        self.engine_idle_seconds += max(0.0, seconds - sampled)

    def on_sampled(self, sampled: SampledPass, rollouts: Moves, finished: Running) -> None:
        """See `Observer`."""
        if not sampled.steps:
            begun = [before.length for before, _ in rollouts if before.length]
            self.resumed += len(begun)
            self.resumed_tokens += sum(begun)
        self.num_tokens += sum(after.length - before.length for before, after in rollouts)
        self.rollout_seconds += sampled.seconds
        self.passes += 1
        self.decoding_steps += sampled.steps

    def on_scored(self, again: Groups, ready: Groups, rejected: Groups, seconds: float) -> None:
        """See `Observer`."""
        self.count_groups([*again, *ready, *rejected])
        self.hinted_groups += len(again)
        self._waste(again)
        self.reward_seconds += seconds

    def on_evict(self, groups: Sequence[AnyGroup], version: int) -> None:
        """See `Observer`."""
        self.evicted += len(groups)
        self._waste(groups)

    def on_take(self, batch: Groups, filtered: Groups, version: int) -> None:
        """See `Observer`."""
        self.dropped += len(filtered)
        self._waste(filtered)

    def _waste(self, groups: Sequence[AnyGroup]) -> None:
        self.wasted_tokens += sum(group.num_tokens for group in groups)

    def take(self) -> RolloutStatistics:
        """Returns the sums so far and resets them to zero."""
        taken = replace(self)
        for f in fields(self):
            setattr(self, f.name, f.default)
        return taken

    def state_dict(self) -> dict[str, Any]:
        """Returns the sums."""
        return {"statistics": asdict(self)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores them."""
        for name, value in state["statistics"].items():
            setattr(self, name, value)

    def metrics(self) -> dict[str, float]:
        """Returns metrics of the generation since the last update; zeros if there was none."""
        metrics: dict[str, float] = {
            f"{'time' if name.endswith('_seconds') else 'rollout'}/{name}": value
            for name, value in asdict(self).items()
        }
        if self.rollout_seconds > 0:
            metrics["rollout/tokens_per_second"] = self.num_tokens / self.rollout_seconds
        return metrics


def unread(counts: Sequence[float], limits: str, has_right: bool = False) -> str | None:
    """Returns a message, with its remedy, if most answers were cut at `limits` or have nothing that the
    reward reads; None if neither holds, or if answers are cut and some of them are right.
    `counts`: number of all answers, of cut ones, and of answers without a final answer.
    """
    num, cut, unparsable = map(round, counts)
    key = limits.partition("=")[0]
    marks = "ask for the form that it reads (data/prompt=NAME), or write reward=last_number for numbers"
    shorter = f"write a larger {key}, or ask for shorter answers (data.prompt.template)"
    unreadable = f"{unparsable} of {num} answers have no final answer that the reward reads"
    was_cut = f"{cut} of {num} answers were cut at {limits}"
    is_cut, is_unread = (count > MOST * num for count in (cut, unparsable))
    if is_cut and is_unread:
        return f"{was_cut}, and {unreadable}: {shorter}; {marks}"
    if is_unread:
        return f"{unreadable}: {marks}"
    return f"{was_cut}: {shorter}" if is_cut and not has_right else None


def sync_metrics(reports: Sequence[SyncReport]) -> dict[str, float]:
    """Returns metrics of the weight syncs since the last update; log-prob differences are the last sync's."""
    metrics = {"time/sync_seconds": sum(report.seconds for report in reports)}
    if reports:
        metrics |= {
            "sync/transfer_seconds": sum(report.transfer_seconds for report in reports),
            "sync/logp_diff_mean": reports[-1].mean_logprob_difference,
            "sync/logp_diff_max": reports[-1].max_logprob_difference,
            "sync/compared_share": reports[-1].compared_share,
        }
        if reports[-1].update_kept is not None:
            metrics["mismatch/lora_update_kept"] = reports[-1].update_kept
    return metrics
