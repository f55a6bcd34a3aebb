"""Many runs in virtual time: which split of the GPUs is best, and where staleness stops paying."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from operator import attrgetter
from typing import Any

from bapo_lightning.data.rollouts.regime import Regime
from bapo_lightning.extras.simulation.fleet import Failures
from bapo_lightning.extras.simulation.law import admitted_queue, in_updates, mean_staleness, tail_factor
from bapo_lightning.extras.simulation.lengths import LengthKind, length_table
from bapo_lightning.extras.simulation.run import Setting, VirtualRun
from bapo_lightning.extras.simulation.times import ServiceTimes, planned_times
from bapo_lightning.plan.planning import Plan, make_plan
from bapo_lightning.plan.run_shape import RunShape
from bapo_lightning.system.phases import advance, phase
from bapo_lightning.system.values import StaleContext

Span = tuple[float, float]  # start and end, in seconds


@dataclass(frozen=True)
class VirtualOutcome:
    """Shares and rates of the counted part of a run."""

    seconds: float  # duration
    tokens_per_second: float  # response tokens that enter training, each once
    trainer_waits: float  # share of the time in which the trainer waits for samples
    syncing: float  # share in which weights are handed over
    fleet_waits: float  # share in which no pass runs
    fleet_idle: float  # share of the copies' time without a sequence: between passes, and at their ends
    ages: dict[int, float]  # share of the trained tokens by age in updates
    wasted: float  # share of all sampled tokens: evicted, refused, or lost with a copy
    evicted: int  # groups dropped for their age
    deaths: int
    start_age: float  # mean age of the first tokens of trained responses, in updates
    requests: float  # responses that are sampled at once, while passes run
    rho: float  # time of updates over time of passes
    tail: float  # see `tail_factor`
    queue: float | None  # see `admitted_queue`; None in turns
    law_age: float | None  # `start_age` by `mean_staleness`

    @property
    def mean_age(self) -> float:
        """Mean age of trained tokens, in updates."""
        return sum(age * share for age, share in self.ages.items())


def outcome_of(run: VirtualRun, skipped: int, left_out: int = 0) -> VirtualOutcome:
    """Returns a run's numbers without its first and last rollout batches. ValueError: nothing is left."""
    updates, batch = run.updates, run.setting.regime.updates_per_rollout_batch
    last = len(updates) - left_out * batch
    counted = updates[skipped * batch : last]
    if not counted:
        raise ValueError(f"{len(updates)} updates are too few")
    window = counted[0].visited, updates[last].visited if left_out else run.end
    seconds = window[1] - window[0]
    passes, syncs = run.engine.passes, run.engine.syncs
    in_pass = [(begin, begin + done.seconds) for begin, done in passes]
    busy = requests = in_passes = 0.0
    for span, (_, done) in zip(in_pass, passes, strict=True):
        if part := _within([span], window):
            busy += done.busy * part / done.seconds
            requests += done.running * part
            in_passes += part
    synced = _within([(begin, begin + length) for begin, length in syncs], window)
    waited = sum(update.begin - update.visited for update in counted)
    ages: Counter[int] = sum((update.ages for update in counted), Counter())
    starts: Counter[int] = sum((update.starts for update in counted), Counter())
    lost, statistics = sum(done.lost_tokens for _, done in passes), run.scheduler.statistics
    return VirtualOutcome(
        seconds=seconds,
        tokens_per_second=sum(run.entered[skipped : last // batch]) / seconds,
        trainer_waits=max(0.0, waited - synced) / seconds,
        syncing=synced / seconds,
        fleet_waits=1 - in_passes / seconds,
        fleet_idle=1 - busy / (run.engine.fleet.copies * seconds),
        ages={age: count / ages.total() for age, count in sorted(ages.items())},
        wasted=(statistics.wasted_tokens + lost) / max(1, statistics.num_tokens + lost),
        evicted=statistics.evicted,
        deaths=sum(done.deaths for _, done in passes),
        start_age=sum(age * count for age, count in starts.items()) / starts.total(),
        **_law(run.setting, requests / (in_passes or inf), (seconds - waited) / (in_passes or inf)),
    )


def _law(setting: Setting, requests: float, rho: float) -> dict[str, Any]:
    regime, tail = setting.regime, tail_factor(setting.lengths, setting.group_size)
    law = {"requests": requests, "rho": rho, "tail": tail, "queue": None, "law_age": None}
    if regime.async_generation:
        batch = setting.groups_per_batch * setting.group_size
        queue = admitted_queue(regime, setting.groups_per_batch, requests * tail / (batch * max(rho, 1.0)))
        sampled = batch / (1 - setting.uniform_share)  # groups of equal scores do not enter
        staleness = mean_staleness(requests, sampled, tail, rho, queue)
        law |= {"queue": queue, "law_age": in_updates(staleness, regime.updates_per_rollout_batch, rho)}
    return law


def _within(spans: Iterable[Span], window: Span) -> float:
    return sum(max(0.0, min(end, window[1]) - max(begin, window[0])) for begin, end in spans)


MORE, MOST = 10, 100  # factors of the failure rate in what-if cells


@dataclass(frozen=True)
class Cell:
    """One choice."""

    trainer_gpus: int
    fleet_gpus: int
    max_age: int  # in updates
    partial_tokens: int | None = None  # of a pass; None: whole responses
    stream: StaleContext | None = None  # None: generation runs in passes
    # Generation and training take turns on the same GPUs, as in synchronous regimes.
    in_turns: bool = False
    what_if: str = ""  # difference from the study's assumptions

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return self.trainer_gpus if self.in_turns else self.trainer_gpus + self.fleet_gpus

    @property
    def generation(self) -> str:
        """How responses are sampled, in words."""
        if self.stream is not None:
            return "a stream" if self.stream == "keep" else "a stream that recomputes"
        tokens = self.partial_tokens
        return "whole responses" if tokens is None else f"passes of {tokens:,} tokens"


@dataclass(frozen=True, eq=False)
class CellResult:
    """A cell and its numbers."""

    cell: Cell
    outcome: VirtualOutcome

    @property
    def speed(self) -> float:
        """Response tokens per second that enter training."""
        return self.outcome.tokens_per_second

    @property
    def idle(self) -> float:
        """Share of all GPUs' time in which they do nothing; ranks that wait for others count as busy."""
        outcome, cell = self.outcome, self.cell
        if cell.in_turns:
            return outcome.fleet_idle - outcome.fleet_waits + outcome.syncing
        trainer = cell.trainer_gpus * (outcome.trainer_waits + outcome.syncing)
        return (trainer + cell.fleet_gpus * outcome.fleet_idle) / cell.gpus


SPEED = attrgetter("speed")


@dataclass(frozen=True)
class StudiedRun:
    """Settings shared by all cells."""

    plan: Plan  # of the configured run
    setting: Setting  # of it; its regime's age, overlap and tokens per pass are set by the cell
    gpus: int
    fleet_memory_share: float
    link_bytes: float  # a second
    sync_seconds: float
    num_skipped: int  # rollout batches

    @property
    def hardware(self) -> str:
        """Hardware that the times belong to."""
        return f"{self.gpus} x {self.plan.gpu.name}, times of the plan"

    def cells(
        self,
        shares: Sequence[float],
        max_ages: Sequence[int],
        partial_tokens: Sequence[int | None],
        streams: Sequence[StaleContext] = (),
    ) -> list[Cell]:
        """Returns the cells: in turns on all GPUs; each split and bound with each pass and stream."""
        whole, splits = self._splits(shares)
        turns = [
            Cell(whole, whole, self._regime(tokens).natural_age, tokens, in_turns=True)
            for tokens in partial_tokens
        ]
        kinds: list[tuple[int | None, StaleContext | None]] = [(tokens, None) for tokens in partial_tokens]
        kinds += [(None, stream) for stream in streams]
        choices = product(kinds, max_ages, splits)
        return turns + [Cell(*split, age, *kind) for kind, age, split in choices]

    def problems(self, cell: Cell) -> list[str]:
        """Reasons why a cell does not fit the GPUs' memory; empty if it does."""
        return make_plan(self._shape(cell), self.plan.gpu, self.plan.assumed).problems

    def simulate(self, cell: Cell, setting: Setting | None = None) -> CellResult:
        """Simulates a cell; a what-if has another `setting` than the world's."""
        regime = self._regime(cell.partial_tokens)
        if not cell.in_turns:
            base = self.setting.regime
            regime = replace(regime, async_generation=True, max_age=cell.max_age, window=base.window)
            if cell.stream is not None:
                regime = replace(regime, stream=cell.stream, stale_action=base.stale_action)
        run = VirtualRun(replace(setting or self.setting, regime=regime), self._times(cell))
        run.run()
        return CellResult(cell, outcome_of(run, self.num_skipped))

    def what_ifs(self, cell: Cell) -> Iterator[tuple[Cell, Setting]]:
        """The best cell with other lengths and failure rates."""
        run, setting = self.plan.run, self.setting
        mean = self.plan.assumed.mean_response_share * run.response_tokens
        kinds: list[tuple[str, LengthKind, float]] = [
            ("constant lengths", "constant", 0.0),
            ("geometric lengths", "geometric", 0.0),
            ("short tail (lognormal, spread 0.4)", "lognormal", 0.4),
            ("long tail (lognormal, spread 1.2)", "lognormal", 1.2),
        ]
        for name, kind, spread in kinds:
            table = length_table(kind, mean, run.response_tokens, spread)
            yield replace(cell, what_if=name), replace(setting, lengths=table)
        rate = setting.failures.per_hour
        for per_hour in dict.fromkeys((0.0, rate * MORE, rate * MOST)):
            failures = Failures(per_hour, setting.failures.repair_seconds)
            name = f"{per_hour:g} deaths of a copy in an hour"
            yield replace(cell, what_if=name), replace(setting, failures=failures)

    def _splits(self, shares: Sequence[float]) -> tuple[int, list[tuple[int, int]]]:
        # Shares of the GPUs are rounded to whole copies of the model.
        unit = self.plan.run.engine.tensor_parallel
        whole = max(1, self.gpus // unit) * unit
        trainers = {min(max(unit, round(share * whole / unit) * unit), whole - unit) for share in shares}
        return whole, [(trainer, whole - trainer) for trainer in sorted(trainers)]

    def _regime(self, partial_tokens: int | None) -> Regime:
        # In turns, without a separate bound.
        regime = replace(self.setting.regime, async_generation=False, max_age=None, window=None, stream=None)
        if not partial_tokens:
            regime = replace(regime, stale_action="evict", max_segments=None)
        return replace(regime, partial_tokens=partial_tokens)

    def _shape(self, cell: Cell) -> RunShape:
        engine = replace(self.plan.run.engine, num_gpus=cell.fleet_gpus)
        if not cell.in_turns:
            share = None if engine.memory_share is None else self.fleet_memory_share
            engine = replace(engine, placement="apart", memory_share=share)
        elif engine.placement == "apart":
            engine = replace(engine, placement="asleep")
        return replace(self.plan.run, num_gpus=cell.trainer_gpus, engine=engine)

    def _times(self, cell: Cell) -> ServiceTimes:
        gpu, assumed = self.plan.gpu, self.plan.assumed
        return planned_times(self._shape(cell), gpu, assumed, self.link_bytes, self.sync_seconds)


@dataclass(frozen=True)
class MeasuredWorld(StudiedRun):
    """One trainer and one engine, with the times of a run."""

    measured: ServiceTimes
    hardware = "a measured run's times"

    def problems(self, cell: Cell) -> list[str]:
        """None: the run fitted."""
        return []

    def what_ifs(self, cell: Cell) -> Iterator[tuple[Cell, Setting]]:
        """None: they would need the plan."""
        return iter(())

    def _splits(self, shares: Sequence[float]) -> tuple[int, list[tuple[int, int]]]:
        return 1, [(1, 1)]

    def _times(self, cell: Cell) -> ServiceTimes:
        return self.measured


@dataclass(frozen=True)
class Study:
    """All results, and conclusions from them."""

    results: tuple[CellResult, ...]  # of the cells that fit
    unfit: tuple[tuple[Cell, str], ...]  # the others, with the reason
    what_ifs: tuple[CellResult, ...]
    least_gain: float  # share of throughput that a larger max_age must gain

    @property
    def overlapping(self) -> list[CellResult]:
        """Results of generation during training."""
        return [result for result in self.results if not result.cell.in_turns]

    @property
    def turns(self) -> CellResult | None:
        """The fastest one that takes turns."""
        return max((result for result in self.results if result.cell.in_turns), key=SPEED, default=None)

    @property
    def by_age(self) -> dict[int, CellResult]:
        """The fastest result with each bound or a smaller one, by ascending bound."""
        fastest: dict[int, CellResult] = {}
        for age in sorted({result.cell.max_age for result in self.overlapping}):
            fastest[age] = max((r for r in self.overlapping if r.cell.max_age <= age), key=SPEED)
        return fastest

    @property
    def paying_age(self) -> int:
        """The smallest bound beyond which no larger one that was tried gains `least_gain` or more."""
        by_age = self.by_age
        most = max(map(SPEED, by_age.values()))
        return min(age for age, result in by_age.items() if most < result.speed * (1 + self.least_gain))

    @property
    def best(self) -> CellResult:
        """The fastest one within `paying_age`."""
        return self.by_age[self.paying_age]


def make_study(world: StudiedRun, cells: Sequence[Cell], least_gain: float, what_if: bool) -> Study:
    """Simulates all cells, with `what_if` also variants of the best. Raises ValueError if no split fits."""
    reasons = {cell: problems[0] for cell in cells if (problems := world.problems(cell))}
    fitting = [cell for cell in cells if cell not in reasons]
    if all(cell.in_turns for cell in fitting):
        raise ValueError(next(iter(reasons.values()), "no split leaves GPUs for both"))
    with phase("simulating", len(fitting)):
        results = [_counted(world, cell) for cell in fitting]
    study = Study(tuple(results), tuple(reasons.items()), (), least_gain)
    others = list(world.what_ifs(study.best.cell)) if what_if else []
    with phase("simulating under other assumptions", len(others)):
        return replace(study, what_ifs=tuple(_counted(world, *other) for other in others))


def _counted(world: StudiedRun, cell: Cell, setting: Setting | None = None) -> CellResult:
    # The garbage collector's visits to all libraries would take most of the time.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        result = world.simulate(cell, setting)
    finally:
        if was_enabled:
            gc.enable()
    advance()
    return result
