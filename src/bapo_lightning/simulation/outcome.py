"""Figures of a run in virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from bapo_lightning.simulation.run import VirtualRun

Span = tuple[float, float]  # begin and end, in seconds


@dataclass(frozen=True)
class VirtualOutcome:
    """Shares and rates of the counted part of a run."""

    seconds: float  # that it took
    tokens_per_second: float  # response tokens that enter training, each once
    trainer_waits: float  # share of the time in which the trainer waits for samples
    syncing: float  # share in which weights are handed over
    fleet_waits: float  # share in which no pass runs
    fleet_idle: float  # share of the copies' time without a sequence: between passes, and in their ends
    ages: dict[int, float]  # share of the trained tokens by age in updates
    wasted: float  # share of all sampled tokens: evicted, refused, or lost with a copy
    evicted: int  # groups dropped for their age
    deaths: int

    @property
    def mean_age(self) -> float:
        """Mean age of trained tokens, in updates."""
        return sum(age * share for age, share in self.ages.items())

    def older_than(self, age: int) -> float:
        """Share of the trained tokens above this age."""
        return sum(share for found, share in self.ages.items() if found > age)


def outcome_of(run: VirtualRun, skipped: int, left_out: int = 0) -> VirtualOutcome:
    """Returns the numbers of a finished run without its first `skipped` and last `left_out` rollout batches.

    Raises ValueError when nothing is left.
    """
    updates, batch = run.updates, run.setting.regime.updates_per_rollout_batch
    last = len(updates) - left_out * batch
    counted = updates[skipped * batch : last]
    if not counted:
        raise ValueError(f"{len(updates)} updates are too few")
    window = counted[0].visited, updates[last].visited if left_out else run.end
    seconds = window[1] - window[0]
    passes, syncs = run.engine.passes, run.engine.syncs
    in_pass = [(begin, begin + done.seconds) for begin, done in passes]
    busy = sum(
        done.busy * _within([span], window) / done.seconds
        for span, (_, done) in zip(in_pass, passes, strict=True)
        if done.seconds
    )
    synced = _within([(begin, begin + length) for begin, length in syncs], window)
    waited = sum(update.begin - update.visited for update in counted)
    ages: Counter[int] = sum((update.ages for update in counted), Counter())
    lost, statistics = sum(done.lost_tokens for _, done in passes), run.scheduler.statistics
    return VirtualOutcome(
        seconds=seconds,
        tokens_per_second=sum(run.entered[skipped : last // batch]) / seconds,
        trainer_waits=max(0.0, waited - synced) / seconds,
        syncing=synced / seconds,
        fleet_waits=1 - _within(in_pass, window) / seconds,
        fleet_idle=1 - busy / (run.engine.fleet.copies * seconds),
        ages={age: count / ages.total() for age, count in sorted(ages.items())},
        wasted=(statistics.wasted_tokens + lost) / max(1, statistics.num_tokens + lost),
        evicted=statistics.evicted,
        deaths=sum(done.deaths for _, done in passes),
    )


def _within(spans: Iterable[Span], window: Span) -> float:
    """Seconds of the spans, which do not overlap, inside the window."""
    return sum(max(0.0, min(end, window[1]) - max(begin, window[0])) for begin, end in spans)
