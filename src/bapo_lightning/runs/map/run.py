"""Fills the cells of the map: one file for each method of each cell, in processes of one thread each.

A file that is there is kept, so that a map that was stopped goes on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
import yaml
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from bapo_lightning.configuration.changes import ABSENT, differences
from bapo_lightning.configuration.compose import compose_run
from bapo_lightning.configuration.run_config import RunConfig
from bapo_lightning.configuration.targets import Target
from bapo_lightning.configuration.validate import read_run
from bapo_lightning.errors import ConfigError
from bapo_lightning.report.map.cells import FIRST_COMPARED, FRESH, Cell, measured_file
from bapo_lightning.run_folder.text_file import write_text
from bapo_lightning.runs.map.plan import MapConfig
from bapo_lightning.runs.sweeps.names import hydra_overrides
from bapo_lightning.worlds.exact.train import Method, Protocol, train


@dataclass(frozen=True)
class Entry:
    """Algorithm and optimizer of a run, as the exact worlds take them."""

    method: Method
    optimizer: Callable[..., Optimizer]
    scheduler: Callable[[Optimizer], LRScheduler]
    max_grad_norm: float

    @classmethod
    def of(cls, config: RunConfig) -> Entry:
        """Makes them."""
        algorithm, optimizer = config.algorithm, config.optimizer
        method = Method(
            advantages=algorithm.advantages.make(),
            bound_rule=algorithm.bounds.make(),
            objective=algorithm.objective.make(),
            weighting=algorithm.weighting.make(),
            contribution_weight=algorithm.contribution_weight,
        )
        return cls(method, optimizer.optimizer.make(), optimizer.scheduler.make(), optimizer.max_grad_norm)


@dataclass(frozen=True)
class Job:
    """One method in one cell, with all its seeds."""

    path: Path
    cell: Cell
    method: str
    seeds: list[int]


def fill(config: MapConfig) -> None:
    """Computes what is missing.

    Raises:
        ConfigError: the folder holds another map, or a method cannot be composed.
    """
    folder = Path(config.output)
    methods = {name: Entry.of(composed(config, name)) for name in config.methods}
    keep_settings(config, folder)
    every = all_jobs(config, folder)
    jobs = [job for job in every if not job.path.exists()]
    processes = min(config.processes or os.cpu_count() or 1, max(len(jobs), 1))
    print(f"{len(jobs)} of {len(every)} to compute, {processes} at once", flush=True)
    context = get_context("fork")
    torch.set_num_threads(1)
    with ProcessPoolExecutor(processes, context) as pool:
        done = {pool.submit(run, config, methods, job): job for job in jobs}
        for number, future in enumerate(as_completed(done), 1):
            future.result()
            job = done[future]
            print(f"[{number}/{len(jobs)}] {job.cell.name}  {job.method}", flush=True)


def keep_settings(config: MapConfig, folder: Path) -> None:
    """Writes the settings beside the map; methods may be added to one that is there.

    Raises:
        ConfigError: other settings differ from those that the map began with.
    """
    plain = config.model_dump(mode="json", exclude={"output", "processes", "controls", "drawn"})
    file = folder / "map.yaml"
    if file.exists():
        found = [
            f"{key}={now}: {folder} began with {before}"
            for key, before, now in differences(yaml.safe_load(file.read_text()), plain)
            if not (before == ABSENT and key.startswith("methods."))
        ]
        if found:
            raise ConfigError([*found, "write output=ANOTHER/FOLDER for another map"])
    folder.mkdir(parents=True, exist_ok=True)
    write_text(file, yaml.safe_dump(plain, sort_keys=False))


def all_jobs(config: MapConfig, folder: Path) -> list[Job]:
    """Every job; fresh data serves all stalenesses."""
    reference, *_ = config.methods
    gate, compared = range(config.gate_seeds), range(FIRST_COMPARED, FIRST_COMPARED + config.seeds)
    jobs = {}
    for cell in config.cells:
        for name in (FRESH, *config.methods):
            seeds = [*(gate if name in (FRESH, reference, *config.gate) else ()), *compared]
            path = measured_file(folder, cell, name)
            jobs[path] = Job(path, cell, name, seeds)
    return list(jobs.values())


def composed(config: MapConfig, name: str) -> RunConfig:
    """The typed configuration of a run by a method: its algorithm and optimizer are used.

    Raises:
        ConfigError: Hydra cannot compose it, or it is wrong.
    """
    overrides = hydra_overrides(config.common | config.methods[name].set)
    try:
        return read_run(compose_run(["run_folder=unused", *overrides]))
    except ConfigError as error:
        raise ConfigError([f"methods.{name}.set: {text}" for text in error.problems]) from None


def run(config: MapConfig, methods: dict[str, Entry], job: Job) -> None:
    """Trains one method in one cell and writes its curves."""
    is_fresh = job.method == FRESH
    given = methods[next(iter(methods))] if is_fresh else methods[job.method]
    world = Target({**config.worlds[job.cell.world].world.node, **dict(job.cell.options)}).make()
    protocol = Protocol(
        optimizer=partial(given.optimizer, lr=job.cell.learning_rate),
        scheduler=given.scheduler,
        max_grad_norm=given.max_grad_norm,
        num_updates=config.num_updates,
        problems_per_update=config.problems_per_update,
        group_size=config.group_size,
        minibatches=1 if is_fresh else job.cell.staleness,
        epochs=1,
        micro_batches=config.micro_batches,
        measure_every=config.measure_every,
    )
    course = train(world, given.method, protocol, job.seeds)
    job.path.parent.mkdir(parents=True, exist_ok=True)
    partial_path = job.path.with_suffix(".partial.npz")
    curves = {name: value.numpy() for name, value in vars(course).items()}
    np.savez(partial_path, seeds=np.array(job.seeds), **curves)
    os.replace(partial_path, job.path)
