"""Makes the study of a configuration and writes its page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from bapo_lightning.configuration.parse import parse
from bapo_lightning.configuration.plan import plan_of
from bapo_lightning.configuration.run_config import RunConfig
from bapo_lightning.configuration.sections import Section
from bapo_lightning.configuration.validate import validate
from bapo_lightning.data.rollouts.rules import Rules
from bapo_lightning.extras.simulation.fleet import Failures
from bapo_lightning.extras.simulation.lengths import LengthKind, length_table
from bapo_lightning.extras.simulation.page import write_page
from bapo_lightning.extras.simulation.run import Setting
from bapo_lightning.extras.simulation.study import MeasuredWorld, StudiedRun, Study, make_study
from bapo_lightning.extras.simulation.times import measured_times
from bapo_lightning.system.errors import ConfigError, DataError
from bapo_lightning.system.run_folder.record import RunRecord, read_rollouts, read_run
from bapo_lightning.system.values import (
    Count,
    CountOrZero,
    Minutes,
    NonNegative,
    Positive,
    Share,
    StaleContext,
)

MOST_GPUS = 100_000
AHEAD = (0, 1, 2, 4)  # rollout batches, for the age bounds that are tried


class SimulateOptions(Section):
    """Keys of `make simulate` in addition to a run's; conf/simulate/default.yaml explains them."""

    gpus: Count | None
    trainer_shares: list[Annotated[float, Gt(0), Lt(1)]]
    max_ages: list[CountOrZero] | None
    partial_tokens: list[Count | None] | None
    streams: list[StaleContext] | None
    lengths: LengthKind | Literal["empirical"]
    spread: NonNegative
    failures_per_hour: Annotated[NonNegative, Le(3600)]
    repair_minutes: Minutes
    uniform_share: Annotated[float, Ge(0), Lt(1)]
    fleet_memory_share: Share
    link_gigabytes_per_second: Positive
    sync_seconds: Annotated[NonNegative, Le(86_400)]
    num_batches: Annotated[Count, Le(10_000)]
    skipped_batches: CountOrZero
    least_gain: Positive
    what_if: bool
    measured: str | None
    output: str | None

    def problems(self) -> Iterator[str]:
        """Keys that contradict each other."""
        if self.skipped_batches >= self.num_batches:
            yield (
                f"skipped_batches={self.skipped_batches} leaves nothing of num_batches={self.num_batches}; "
                f"write num_batches={self.skipped_batches + 9}"
            )
        if self.lengths == "empirical" and self.measured is None:
            yield "lengths=empirical needs the lengths of a run; write measured=RUN"
        if self.measured is not None and self.gpus is not None:
            yield "measured times belong to the run's own hardware; leave out gpus (GPUS=...) or measured"
        for key in ("trainer_shares", "max_ages", "partial_tokens"):
            if getattr(self, key) == []:
                yield f"{key}=[] tries nothing; leave it out"


class SimulateCommand(Section):
    """The node that `make simulate` adds to the configuration of a run."""

    simulate: SimulateOptions


def simulate(plain: dict[str, Any]) -> tuple[Study, Path]:
    """Makes the study that `simulate` of a resolved configuration requests, and its page; returns both.
    Raises ConfigError with all that is wrong, DataError for a model of unknown sizes or an unusable run.
    """
    config, options = read_simulate(plain)
    world = world_of(config, options)
    updates, tokens = config.staleness.updates_per_rollout_batch, config.scale.partial_tokens
    ages = options.max_ages or [(ahead + 1) * updates - 1 for ahead in AHEAD]
    partial = options.partial_tokens
    if partial is None:
        partial = [None, *([tokens] if tokens < config.scale.max_new_tokens else [])]
    streams = options.streams
    if streams is None:
        streams = [config.staleness.stream] if config.staleness.stream is not None else []
    if options.measured is not None and not config.staleness.is_stream:
        streams = []  # passes do not show the time of a step
    cells = world.cells(options.trainer_shares, ages, partial, streams)
    try:
        study = make_study(world, cells, options.least_gain, options.what_if)
    except ValueError as error:
        remedy = "write a larger GPUS, or other simulate.trainer_shares"
        raise ConfigError([f"no split of {world.gpus} GPUs fits; {remedy}. The first: {error}"]) from None
    folder = Path(options.output or f"outputs/simulate/{config.name}-{world.gpus}gpus")
    return study, write_page(study, world, config.name, folder)


def read_simulate(plain: dict[str, Any]) -> tuple[RunConfig, SimulateOptions]:
    """Returns the typed configuration. Raises ConfigError with everything that is wrong."""
    command, problems = parse(SimulateCommand, {"simulate": plain.pop("simulate", {})})
    problems += [f"simulate.{text}" for text in command.simulate.problems()] if command is not None else []
    if command is None or problems:
        raise ConfigError(problems)
    config, options = validate(plain, "run"), command.simulate
    updates = config.staleness.updates_per_rollout_batch
    if small := [age for age in options.max_ages or [] if age < updates - 1]:
        raise ConfigError([
            f"simulate.max_ages={small}: the last of {updates} updates on a rollout batch sees age "
            f"{updates - 1} at least; write max_ages of at least {updates - 1}"
        ])  # fmt: skip
    if config.staleness.reuse_share:
        name = config.staleness.name
        raise ConfigError([f"regime={name} reuses past groups, which is not simulated; write regime=async"])
    return config, options


def world_of(config: RunConfig, options: SimulateOptions) -> StudiedRun:
    """Returns everything that the cells of a study share. Raises ConfigError for too few GPUs."""
    plan, scale = plan_of(config), config.scale
    gpus, unit = options.gpus or config.num_ranks, plan.run.engine.tensor_parallel
    measured = read_run(options.measured) if options.measured else None
    if gpus > MOST_GPUS:
        raise ConfigError([
            f"simulate.gpus={gpus}: every copy of the model is simulated separately, on at most "
            f"{MOST_GPUS:,} GPUs; write a smaller GPUS"
        ])  # fmt: skip
    if measured is None and gpus < 2 * unit:
        raise ConfigError([
            f"simulate.gpus={gpus} cannot be split: trainer and fleet take whole copies of the engine's "
            f"model, {unit} GPUs each; write GPUS={2 * unit} or more"
        ])  # fmt: skip
    if options.lengths == "empirical":
        assert measured is not None  # `SimulateOptions.problems`
        lengths = lengths_of(measured)
    else:
        mean = plan.assumed.mean_response_share * scale.max_new_tokens
        lengths = length_table(options.lengths, mean, scale.max_new_tokens, options.spread)
    rules = config.algorithm.make_rules().by_name
    admission = Rules({name: rule for name, rule in rules.items() if rule.has("admits")})
    setting = Setting(
        regime=config.staleness,
        group_size=scale.group_size,
        groups_per_batch=scale.prompts_per_batch,
        num_batches=options.num_batches,
        lengths=lengths,
        prompt_tokens=scale.max_prompt_tokens,
        rules=admission,
        uniform_share=options.uniform_share if admission.by_name else 0.0,
        failures=Failures(options.failures_per_hour, 60 * options.repair_minutes),
        seed=config.seed,
    )
    shared: dict[str, Any] = {
        "plan": plan,
        "setting": setting,
        "gpus": gpus,
        "fleet_memory_share": options.fleet_memory_share,
        "link_bytes": 1e9 * options.link_gigabytes_per_second,
        "sync_seconds": options.sync_seconds,
        "num_skipped": options.skipped_batches,
    }
    if measured is None:
        return StudiedRun(**shared)
    return MeasuredWorld(**shared | {"gpus": 2}, measured=measured_times(measured, config.seed))


def lengths_of(run: RunRecord) -> np.ndarray:
    """Returns the lengths of the responses that a run recorded. Raises DataError if there are none."""
    lengths = [int(row["num_tokens"]) for row in read_rollouts(run.path)]
    if not lengths:
        raise DataError(f"{run.path} has no rollouts.jsonl with lengths; write simulate.lengths=lognormal")
    return np.array(lengths, dtype=np.int64)
