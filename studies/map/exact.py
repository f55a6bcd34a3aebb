"""Jobs of exact worlds: many seeds at once, in processes of one thread each."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from bapo_lightning.configuration.run_config import RunConfig
from bapo_lightning.configuration.sections import Algorithm
from bapo_lightning.configuration.targets import Target
from bapo_lightning.data.rollouts.stages import BatchAdvantageStage
from bapo_lightning.objectives.advantages.reward_batch import BatchAdvantages
from bapo_lightning.report.progress.counting import counted
from studies.exact.train import Method, Protocol, train
from studies.map.cells import FRESH, write_measured
from studies.map.jobs import Job
from studies.map.plan import MapConfig


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
            batch_advantages=_maker_of_batch_advantages(algorithm),
            weighting=algorithm.weighting.make(),
        )
        return cls(method, optimizer.optimizer.make(), optimizer.scheduler.make(), optimizer.max_grad_norm)


def _maker_of_batch_advantages(algorithm: Algorithm) -> Callable[[], BatchAdvantages] | None:
    """Returns what makes the batch advantages of a seed; None where advantages are relative to the group."""
    nodes = [node for node in algorithm.stage_nodes.values() if node.is_a(BatchAdvantageStage)]
    return (lambda: nodes[0].make().advantages) if nodes else None


def fill(config: MapConfig, methods: dict[str, RunConfig], jobs: Sequence[Job]) -> None:
    """Computes the jobs, and says how far it is."""
    if not jobs:
        return
    entries = {name: Entry.of(method) for name, method in methods.items()}
    processes = min(config.processes or os.cpu_count() or 1, len(jobs))
    context = get_context("fork")
    torch.set_num_threads(1)
    with ProcessPoolExecutor(processes, context) as pool:
        done = {pool.submit(run, config, entries, job): job for job in jobs}
        # Begins after the forks: a thread that draws would not exist in them.
        with counted("jobs", len(jobs)) as count:
            for future in as_completed(done):
                future.result()
                job = done[future]
                count(f"{job.cell.name}  {job.method}")


def run(config: MapConfig, methods: dict[str, Entry], job: Job) -> None:
    """Trains one method in one cell and writes its curves."""
    is_fresh = job.method == FRESH
    given = methods[next(iter(methods))] if is_fresh else methods[job.method]
    node = config.worlds[job.cell.world].world
    assert node is not None
    world = Target({**node.node, **dict(job.cell.options)}).make()
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
    write_measured(job.path, job.seeds, {name: value.numpy() for name, value in vars(course).items()})
