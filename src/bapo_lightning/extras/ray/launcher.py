"""Runs of a sweep on the nodes of a Ray cluster."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from bapo_lightning.extras.ray import require_ray
from bapo_lightning.system.errors import EngineError
from bapo_lightning.system.run_folder.lock import is_held
from bapo_lightning.system.values import Count, CountOrZero, NonNegative, Positive
from bapo_lightning.tools.sweeps.job import STOPPED, TrainJob, log_file
from bapo_lightning.tools.sweeps.launchers import LOST, Ended, Jobs

POLL_SECONDS = 1.0  # within which a Ctrl-C is noticed
HANDOVER_SECONDS = 600.0  # for a run whose node is lost to save itself before it continues elsewhere


@dataclass(frozen=True)
class RayLauncher:
    """Runs each job on a node that has room, and again on another node if its node is lost."""

    address: str | None  # as in `joining.join`
    parallel_runs: Count | None  # at a time; None: as many as there is room for
    cpus_per_run: Positive
    gpus_per_run: NonNegative
    max_retries: CountOrZero  # for a run whose node is lost

    def __post_init__(self) -> None:
        require_ray("launcher=ray", "launcher=local")

    def __call__(self, jobs: Jobs) -> Iterator[Ended]:
        """Runs all jobs, by run name, in folders that are the same on all nodes; yields exit codes. Ctrl-C
        lets those that run save themselves and end, and gives up the others. Raises EngineError without a
        cluster, once it is gone, or without a node with room for a run.
        """
        import ray

        from bapo_lightning.extras.ray.joining import check_cluster, join, leave, room

        cpus, gpus = self.cpus_per_run, self.gpus_per_run
        joined = join(self.address, cpus, "launcher.address")
        task = ray.remote(train).options(num_cpus=cpus, num_gpus=gpus, max_retries=self.max_retries)
        threads = {"OMP_NUM_THREADS": str(max(1, int(cpus)))}
        kept = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        context = os.getcwd(), kept | threads
        waiting, running = iter(jobs.items()), dict[Any, str]()
        most = self.parallel_runs or len(jobs)
        try:
            if not any(room(cpus, gpus).values()):
                raise EngineError(
                    f"no node of the Ray cluster has room for a run of {cpus} CPUs and {gpus} GPUs; write "
                    "smaller launcher.cpus_per_run or launcher.gpus_per_run, or add a node"
                )
            if is_taken(cpus, gpus):
                text = f"sweep: the Ray cluster is busy with other work; runs of {cpus} CPUs and {gpus} GPUs "
                text += "start when that ends (`ray status` shows what is free)"
                print(text, file=sys.stderr, flush=True)
            while True:
                check_cluster()
                for name, job in islice(waiting, most - len(running)):
                    absolute = replace(job, folder=job.folder.absolute())
                    running[task.remote(absolute, *context)] = name
                if not running:
                    return
                try:
                    done = ray.wait([*running], timeout=POLL_SECONDS)[0]
                except KeyboardInterrupt:
                    waiting = iter(())
                    for reference in running:
                        ray.cancel(reference)
                    done = []
                for reference in done:
                    name = running.pop(reference)
                    yield name, code_of(reference, jobs[name])
        finally:
            if joined:
                leave()


def is_taken(cpus: float, gpus: float) -> bool:
    """Whether other work leaves too little of the whole cluster for one run."""
    import ray

    free = ray.available_resources()
    return any(free.get(name, 0.0) < need for name, need in (("CPU", cpus), ("GPU", gpus)))


def train(job: TrainJob, folder: str, environment: Mapping[str, str]) -> int:
    """Trains on this node, in the folder of the command; returns the exit code."""
    os.chdir(folder)
    end = time.monotonic() + HANDOVER_SECONDS
    with ThreadPoolExecutor(1) as pool:
        try:
            while is_held(job.folder) and time.monotonic() < end:
                time.sleep(POLL_SECONDS)
            training = pool.submit(job, environment)
            while True:  # Ray's interruption only reaches Python code, not a call that waits for a process
                with suppress(TimeoutError):
                    return training.result(POLL_SECONDS)
        except KeyboardInterrupt:
            job.stop()
            return STOPPED


def code_of(reference: Any, job: TrainJob) -> int:
    """The exit code of a run that has ended, whatever its node did."""
    import ray

    try:
        return int(ray.get(reference))
    except (ray.exceptions.TaskCancelledError, KeyboardInterrupt):
        return STOPPED
    except ray.exceptions.RayError as error:
        if isinstance(getattr(error, "cause", None), KeyboardInterrupt):
            return STOPPED
        with log_file(job.folder).open("a", encoding="utf-8") as log:
            log.write(f"the cluster ended the job without a result: {' '.join(str(error).split())}\n")
        return LOST
