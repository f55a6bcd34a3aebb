"""Jobs of exact worlds: many seeds at once, in processes of one thread each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context

import torch

from bapo_lightning.configuration.run_config import RunConfig
from bapo_lightning.configuration.sections import Optimizer
from bapo_lightning.configuration.targets import Target
from bapo_lightning.modules.algorithm import Algorithm
from bapo_lightning.runs.build import build_algorithm
from bapo_lightning.system.orphans import end_with_parent
from studies.commands import counted
from studies.exact.train import Protocol, train
from studies.map.cells import FRESH, write_measured
from studies.map.jobs import Job
from studies.map.plan import MapConfig


def fill(config: MapConfig, methods: dict[str, RunConfig], jobs: Sequence[Job]) -> None:
    if not jobs:
        return
    entries = {
        name: (build_algorithm(method.algorithm), method.optimizer) for name, method in methods.items()
    }
    processes = min(config.processes or os.cpu_count() or 1, len(jobs))
    context = get_context("fork")
    torch.set_num_threads(1)
    with ProcessPoolExecutor(processes, context, end_with_parent, (os.getpid(),)) as pool:
        done = {pool.submit(run, config, entries, job): job for job in jobs}
        # Begins after the forks: a thread that draws would not exist in them.
        with counted("jobs", len(jobs)) as count:
            for future in as_completed(done):
                future.result()
                job = done[future]
                count(f"{job.cell.name}  {job.method}")


def run(config: MapConfig, methods: dict[str, tuple[Algorithm, Optimizer]], job: Job) -> None:
    is_fresh = job.method == FRESH
    algorithm, given = methods[next(iter(methods))] if is_fresh else methods[job.method]
    node = config.worlds[job.cell.world].world
    assert node is not None
    world = Target({**node.node, **dict(job.cell.options)}).make()
    protocol = Protocol(
        optimizer=partial(given.optimizer.make(), lr=job.cell.learning_rate),
        scheduler=given.scheduler.make(),
        max_grad_norm=given.max_grad_norm,
        num_updates=config.num_updates,
        problems_per_update=config.problems_per_update,
        group_size=config.group_size,
        minibatches=1 if is_fresh else job.cell.staleness,
        epochs=1 if is_fresh else job.cell.epochs,
        lag=0 if is_fresh else job.cell.lag,
        micro_batches=config.micro_batches,
        measure_every=config.measure_every,
    )
    course = train(world, algorithm, protocol, job.seeds)
    write_measured(job.path, job.seeds, {name: value.numpy() for name, value in vars(course).items()})
