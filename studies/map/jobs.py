"""The jobs of a map: a method in a cell, with all its seeds. A job that left its file is done."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bapo_lightning.configuration.compose import compose_run, hydra_overrides
from bapo_lightning.configuration.run_config import RunConfig, gives_to_all
from bapo_lightning.configuration.validate import validate
from bapo_lightning.data.rollouts.stages import BatchAdvantageStage
from bapo_lightning.objectives.objective import needs_of
from bapo_lightning.system.errors import ConfigError
from studies.commands import keep_plain_settings
from studies.map.cells import FIRST_COMPARED, FRESH, MapCell, measured_file
from studies.map.plan import MapConfig

# Functions of `objectives.weighting`, in words.
MEAN_OVER = {
    "token_mean": "tokens",
    "sequence_mean": "responses",
    "fixed_length": "responses, by a fixed length",
    "step_mean": "steps",
}


@dataclass(frozen=True)
class Job:
    path: Path
    cell: MapCell
    method: str
    seeds: list[int]

    @property
    def is_done(self) -> bool:
        return self.path.exists()


def keep_settings(config: MapConfig, folder: Path) -> None:
    """Writes the settings beside the map; methods may be added to one that is there."""
    shown = {"output", "kept", "processes", "controls", "drawn", "duels", "only", "verdict"}
    keep_plain_settings(config.model_dump(mode="json", exclude=shown), folder)


def all_jobs(config: MapConfig, folder: Path) -> list[Job]:
    """Every job; fresh data serves all stalenesses."""
    reference, *_ = config.methods
    gate = range(config.gate_seeds * (config.verdict is None))  # a verdict reads no gate
    compared = range(FIRST_COMPARED, FIRST_COMPARED + config.seeds)
    jobs = {}
    for cell in config.cells:
        for name in (*[FRESH] * config.needs_fresh, *config.methods):
            is_gated = config.is_leaderboard or name in (FRESH, reference, *config.gate)
            seeds = [*(gate if is_gated else ()), *compared]
            path = measured_file(folder, cell, name)
            jobs[path] = Job(path, cell, name, seeds)
    return list(jobs.values())


def composed(config: MapConfig, name: str) -> RunConfig:
    """The typed configuration of a run by a method: its algorithm and optimizer are used."""
    sizes = {"scale.group_size": config.group_size}
    overrides = hydra_overrides(sizes | config.common | config.methods[name].set)
    try:
        run_config = validate(compose_run(["run_folder=unused", *overrides]), "run")
    except ConfigError as error:
        raise ConfigError([f"methods.{name}.set: {text}" for text in error.problems]) from None
    is_exact = any(entry.world for entry in config.worlds.values())
    if is_exact and (problems := [f"methods.{name}: {text}" for text in exact_world_problems(run_config)]):
        raise ConfigError(problems)
    return run_config


def means_of(config: MapConfig) -> dict[str, str]:
    """The items over which the loss of each method, and of fresh data, is a mean."""
    weightings = {name: composed(config, name).algorithm.weighting.name for name in config.methods}
    items = {name: MEAN_OVER.get(each.rpartition(".")[2], each) for name, each in weightings.items()}
    return {FRESH: next(iter(items.values())), **items}


def exact_world_problems(config: RunConfig) -> Iterator[str]:
    """Yields what a method needs that exact worlds do not have."""
    algorithm, objective = config.algorithm, config.algorithm.objective.object
    for name, node in algorithm.stage_nodes.items():
        if gives_to_all(node) and not node.is_a(BatchAdvantageStage):
            yield (
                f"algorithm={algorithm.name} has a stage that gives advantages by the text of responses "
                f"({name}), and exact worlds have none; leave the method out, or write map=locks"
            )
    if not {"reference_logp", "log_z"}.isdisjoint(needs_of(objective)):
        yield (
            f"algorithm={algorithm.name} needs a reference policy or an estimate of log Z, which exact "
            "worlds do not have; leave it out of methods"
        )
