"""Jobs of exact worlds: many seeds at once, in processes of one thread each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from bapo_lightning.callbacks.run_manifest import git_commit
from bapo_lightning.configuration.compose import hydra_overrides
from bapo_lightning.configuration.run_config import RunConfig
from bapo_lightning.configuration.sections import Optimizer
from bapo_lightning.configuration.targets import Target
from bapo_lightning.system.orphans import end_with_parent
from studies.bias.command import method_of
from studies.bias.learn import learn, seeded
from studies.bias.population import Method
from studies.commands import counted
from studies.exact.enumerated import Tree
from studies.exact.train import Protocol, train
from studies.map.cells import FRESH, write_measured
from studies.map.jobs import Job
from studies.map.kept import KeptRuns
from studies.map.plan import MapConfig

DIGITS = 4  # of a reward that is kept


def fill(config: MapConfig, methods: dict[str, RunConfig], jobs: Sequence[Job]) -> None:
    """Computes the jobs, except those whose curves are kept in the repository."""
    kept = KeptRuns(Path(config.kept)) if config.kept and jobs else None
    if kept is not None:
        kept.check({run_name(job): overrides(config, job) for job in jobs})
        for job in jobs:
            if run_name(job) in kept:
                curves = kept.curves(run_name(job))
                write_measured(job.path, job.seeds, {"reward": np.stack([*curves.values()])})
    jobs = [job for job in jobs if not job.is_done]
    if not jobs:
        return
    entries = {name: (method_of(method), method.optimizer) for name, method in methods.items()}
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
                if kept is not None:
                    with np.load(job.path) as file:
                        curves = dict(zip(map(str, job.seeds), file["reward"], strict=True))
                    kept.add(run_name(job), overrides(config, job), curves, git_commit())
                count(f"{job.cell.name}  {job.method}")


def run_name(job: Job) -> str:
    return f"{job.path.parent.name}-{job.method}"


def overrides(config: MapConfig, job: Job) -> tuple[str, ...]:
    """Settings that decide the numbers of a job."""
    first, *_ = config.methods
    node = config.worlds[job.cell.world].world
    assert node is not None
    protocol = {"num_updates": config.num_updates, "measure_every": config.measure_every, "seeds": job.seeds}
    chosen = config.methods[first if job.method == FRESH else job.method].set
    return hydra_overrides({"world": node.node, **protocol, **config.common, **chosen})


def run(config: MapConfig, methods: dict[str, tuple[Method, Optimizer]], job: Job) -> None:
    is_fresh = job.method == FRESH
    method, given = methods[next(iter(methods))] if is_fresh else methods[job.method]
    node = config.worlds[job.cell.world].world
    assert node is not None
    target = Target({**node.node, **dict(job.cell.options)})
    protocol = Protocol(
        optimizer=partial(given.optimizer.make(), lr=job.cell.learning_rate),
        scheduler=given.scheduler.make(),
        max_grad_norm=given.max_grad_norm,
        num_updates=config.num_updates,
        problems_per_update=config.problems_per_update,
        group_size=job.cell.batch or config.group_size,
        minibatches=1 if is_fresh else job.cell.staleness,
        epochs=1 if is_fresh else job.cell.epochs,
        lag=0 if is_fresh else job.cell.lag,
        micro_batches=config.micro_batches,
        measure_every=config.measure_every,
    )
    if job.cell.batch:
        tree = seeded(target.make(Tree, starts=max(job.seeds) + 1), job.seeds)
        curves = {"reward": learn(tree, method, protocol, job.seeds).round(decimals=DIGITS)}
    else:
        curves = vars(train(target.make(), method.algorithm, protocol, job.seeds))
    write_measured(job.path, job.seeds, {name: value.numpy() for name, value in curves.items()})
