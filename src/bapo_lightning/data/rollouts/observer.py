"""Observers of a scheduler: costs and losses of generation between two updates, and the ledger.

`ledger.jsonl` has one line for each work item, written when its fate is decided. It is append-only, and lists
no item twice, also after a resume.

    {"epoch": 0, "problem": "37+85", "fate": "trained", "version": 16}
    {"epoch": 0, "problem": "12+40", "fate": "filtered", "reason": "all scores equal", "version": 16}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

from bapo_lightning.data.rollouts.running_group import RunningGroup, SampledPass
from bapo_lightning.rollout.engine import GenerationRequest
from bapo_lightning.rollout.weight_sync import SyncReport
from bapo_lightning.system.run_folder.journal import Journal
from bapo_lightning.types import FinishReason, Group, Rollout, Sample, ScoreStatus, WorkItem

AnyGroup = Group | RunningGroup
Groups = Sequence[Group]
Running = Sequence[RunningGroup]
Requests = Sequence[GenerationRequest]
Moves = Sequence[tuple[Rollout, Rollout]]  # rollouts before and after a pass


class Observer:
    """Gets all events in order, under the scheduler's lock. `version` is the trainer's at that moment."""

    def on_undrawable(self, items: Sequence[WorkItem], version: int) -> None:
        """An epoch began in which these items cannot be drawn, since their prompts are too long."""

    def on_pass(self, engine_version: int, evicted: Running, requests: Requests, running: Running) -> None:
        """A pass over the `running` groups begins, after some were `evicted`."""

    def on_sampled(self, sampled: SampledPass, rollouts: Moves, finished: Running) -> None:
        """A pass is over, with groups that it completed."""

    def on_scored(self, retried: Groups, ready: Groups, rejected: Groups, seconds: float) -> None:
        """Groups were scored within `seconds`. Groups in `retried` are sampled once more."""

    def on_evict(self, groups: Sequence[AnyGroup], version: int) -> None:
        """Running or scored groups are too old."""

    def on_take(self, batch: Groups, filtered: Groups, version: int) -> None:
        """A batch enters training, and its rejected groups are `filtered`."""

    def on_end(self, groups: Sequence[AnyGroup], version: int) -> None:
        """The run ends before these groups enter training."""

    def on_event(self, event: str, **content: Any) -> None:
        """The trainer or a collector did something whose place in the order of events matters."""

    def state_dict(self) -> dict[str, Any]:
        """Returns entries of a checkpoint, under the observer's own keys."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores its entries from a state that also holds entries of others."""


class FileObserver(Observer):
    """An observer that writes rows into a file, which a resume cuts to the size of its checkpoint."""

    size_key: ClassVar[str]  # of the checkpoint's entry

    def __init__(self, path: Path) -> None:
        self.journal = Journal(path)

    def state_dict(self) -> dict[str, Any]:
        """See `Observer`; a thread may write more rows before the checkpoint is complete."""
        return {self.size_key: self.journal.size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Removes the rows after the checkpoint."""
        self.journal.cut(state[self.size_key])


class Fate(StrEnum):
    """Fate of a work item."""

    TRAINED = "trained"  # its group entered training
    FILTERED = "filtered"  # sampled, but nothing could be learned from it
    DROPPED = "dropped"  # lost to staleness or to the end of the run


class Ledger(FileObserver):
    """Writes fates to a file."""

    size_key = "ledger_size"

    def on_undrawable(self, items: Sequence[WorkItem], version: int) -> None:
        """See `Observer`."""
        self._write(items, Fate.FILTERED, version, "prompt too long")

    def on_evict(self, groups: Sequence[AnyGroup], version: int) -> None:
        """See `Observer`."""
        self._write([group.item for group in groups], Fate.DROPPED, version, "too old")

    def on_take(self, batch: Groups, filtered: Groups, version: int) -> None:
        """See `Observer`."""
        self._write([group.item for group in batch], Fate.TRAINED, version)
        self._write([group.item for group in filtered], Fate.FILTERED, version, "all scores equal")

    def on_end(self, groups: Sequence[AnyGroup], version: int) -> None:
        """See `Observer`."""
        self._write([group.item for group in groups], Fate.DROPPED, version, "the run ended")

    def _write(self, items: Sequence[WorkItem], fate: Fate, version: int, reason: str | None = None) -> None:
        why = {"reason": reason} if reason is not None else {}
        self.journal.append(
            {"epoch": item.epoch, "problem": item.problem.id, "fate": fate, **why, "version": version}
            for item in items
        )


MOST = 0.75  # of the answers: a weak policy that still learns has fewer unreadable answers


@dataclass(slots=True)
class SummingObserver(Observer):
    """An observer whose fields are sums, and its state."""

    key: ClassVar[str]  # of the checkpoint's entry

    def state_dict(self) -> dict[str, Any]:
        """Returns the sums."""
        return {self.key: asdict(self)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores them."""
        for name, value in state[self.key].items():
            setattr(self, name, value)


@dataclass(slots=True)
class RolloutStatistics(SummingObserver):
    """Sums since the last `take`; each is a metric, `time/<name>` if in seconds, else `rollout/<name>`."""

    key: ClassVar[str] = "statistics"
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
        all_samples = [sample for group in groups for sample in group.samples]
        samples = [sample for sample in all_samples if sample.rollout.aging_segments]
        self.expert_traces += len(all_samples) - len(samples)
        self.num_samples += len(samples)
        self.cut += sum(sample.rollout.finish is FinishReason.LENGTH for sample in samples)
        statuses = Counter(sample.score.status for sample in samples)
        self.reward_timeouts += statuses[ScoreStatus.TIMEOUT]
        self.reward_failures += statuses[ScoreStatus.FAILED]
        self.unparsable += statuses[ScoreStatus.UNPARSABLE]
        self.filtered_samples += sum(not sample.is_trained for sample in all_samples)
        self.uniform_groups += sum(group.is_uniform for group in groups)

    def count_wait(self, seconds: float, sampled: float) -> None:
        """Counts a wait of the engine, whose stream continued during a probe for `sampled` seconds of it."""
        self.rollout_seconds += sampled
        self.engine_idle_seconds += max(0.0, seconds - sampled)

    def on_sampled(self, sampled: SampledPass, rollouts: Moves, finished: Running) -> None:
        """See `Observer`."""
        if not sampled.steps:
            lengths = [before.length for before, _ in rollouts if before.length]
            self.resumed += len(lengths)
            self.resumed_tokens += sum(lengths)
        self.num_tokens += sum(after.length - before.length for before, after in rollouts)
        self.rollout_seconds += sampled.seconds
        self.passes += 1
        self.decoding_steps += sampled.steps

    def on_scored(self, retried: Groups, ready: Groups, rejected: Groups, seconds: float) -> None:
        """See `Observer`."""
        self.count_groups([*retried, *ready, *rejected])
        self.hinted_groups += len(retried)
        self._waste(retried)
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

    def metrics(self) -> dict[str, float]:
        """Returns metrics of the generation since the last update; zeros if there was none."""
        metrics: dict[str, float] = {
            f"{'time' if name.endswith('_seconds') else 'rollout'}/{name}": value
            for name, value in asdict(self).items()
        }
        if self.rollout_seconds > 0:
            metrics["rollout/tokens_per_second"] = self.num_tokens / self.rollout_seconds
        return metrics


@dataclass(slots=True)
class SelectionBias(SummingObserver):
    """Compares responses trained on with all that were sampled, over the whole run: rules for stale data that
    leave out long or hard answers show here.
    """

    key: ClassVar[str] = "selection_bias"
    sampled: int = 0  # responses that ended or were evicted
    sampled_tokens: int = 0
    ended: int = 0
    ended_score: float = 0.0
    trained: int = 0  # as often as an update trained on them
    trained_tokens: int = 0
    trained_score: float = 0.0

    def on_scored(self, retried: Groups, ready: Groups, rejected: Groups, seconds: float) -> None:
        """See `Observer`."""
        all_samples = (sample for group in [*retried, *ready, *rejected] for sample in group.samples)
        samples = [sample for sample in all_samples if sample.rollout.aging_segments]
        self.sampled += len(samples)
        self.sampled_tokens += sum(sample.rollout.length for sample in samples)
        self.ended += len(samples)
        self.ended_score += sum(sample.score.value for sample in samples)

    def on_evict(self, groups: Sequence[AnyGroup], version: int) -> None:
        """See `Observer`; scored groups were counted before."""
        running = [group for group in groups if isinstance(group, RunningGroup)]
        self.sampled += sum(len(group.rollouts) for group in running)
        self.sampled_tokens += sum(group.num_tokens for group in running)

    def metrics(self, trained: Sequence[Sample]) -> dict[str, float]:
        """Counts the samples that an update trains on; returns the metrics, none without samples yet."""
        self.trained_tokens += sum(sample.rollout.length for sample in trained)
        whole = [sample for sample in trained if not sample.rollout.branch]  # one of each conversation
        self.trained += len(whole)
        self.trained_score += sum(sample.score.value for sample in whole)
        if not (self.sampled_tokens and self.ended and self.trained):
            return {}
        length, score = self.trained_tokens / self.trained, self.trained_score / self.trained
        return {
            "rollout/trained_length_ratio": length / (self.sampled_tokens / self.sampled),
            "rollout/trained_score_difference": score - self.ended_score / self.ended,
        }


def unread(counts: Sequence[float], limits: str, has_right: bool = False) -> str | None:
    """Returns a message, with its remedy, if most answers were cut at `limits` or have nothing that the
    reward reads; None if neither holds, or if answers are cut and some of them are right.
    `counts`: number of all answers, of cut ones, and of answers without a final answer.
    """
    num, cut, unparsable = map(round, counts)
    key = limits.partition("=")[0]
    marks = "ask for the form that it reads (data/prompt=NAME), or write the reward of their form "
    marks += "(reward=last_number for numbers in texts, reward=final_value for the additions)"
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
