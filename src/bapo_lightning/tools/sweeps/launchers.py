"""Starts the runs of a sweep: `hydra/launcher=` is one of these, or a plugin of Hydra's.

    local                 processes that share this machine's cores and GPUs
    ray                   processes on the nodes of a Ray cluster
    joblib, submitit ...  Hydra's, each of whose jobs starts a run as a process

A launcher takes jobs by run name and yields each run's name with its exit code when it has ended; those that
it gives up before they start may be left out. A run that fails does not stop the others.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from queue import SimpleQueue
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher as Plugin
from omegaconf import DictConfig, OmegaConf

from bapo_lightning.configuration.compose import composed_run
from bapo_lightning.configuration.targets import Target, target_problems
from bapo_lightning.system.errors import ConfigError
from bapo_lightning.system.host import answer, num_cores
from bapo_lightning.system.run_folder.record import STOPPED_EARLY, read_manifest
from bapo_lightning.system.values import Count, CountOrZero
from bapo_lightning.tools.sweeps.job import STOPPED, JobFailed, TrainJob

LOST = 1  # exit code of a job that ended without a result
HERE = ("run_local", "BasicLauncher", "JoblibLauncher")  # on this machine, which is asked for what runs need
Jobs = Mapping[str, TrainJob]  # by the names of their runs
Ended = tuple[str, int]  # name and exit code of a run
Launch = Callable[[Jobs], Iterator[Ended]]


def launcher_of(node: DictConfig, plugin: Callable[[], Plugin] | None = None) -> tuple[Launch, bool]:
    """The launcher that `hydra.launcher` of a composed configuration describes, and whether it starts runs on
    this machine. `plugin` makes one of Hydra's. Raises ConfigError: an option is wrong, or a library is not
    installed.
    """
    module, _, name = node._target_.rpartition(".")
    if plugin is not None and not module.startswith("bapo_lightning."):
        return partial(run_by_plugin, plugin()), name in HERE
    options: Any = OmegaConf.to_container(node, resolve=True)
    if problems := list(target_problems(options, "launcher")):
        raise ConfigError(problems)
    return Target(options).make(), name in HERE


def chosen_launcher(overrides: Sequence[str]) -> tuple[Launch, bool]:
    """The package's launcher that overrides such as `hydra/launcher=ray` choose. Raises ConfigError."""
    usual = ["run_folder=unused", "hydra/sweeper=runs", "hydra/launcher=local"]
    return launcher_of(composed_run([*usual, *overrides], with_hydra=True).hydra.launcher)


def run_local(
    jobs: Jobs, parallel_runs: Count | None = None, gpus_per_run: CountOrZero = 0
) -> Iterator[Ended]:
    """Runs `parallel_runs` jobs at a time; Ctrl-C cancels the waiting ones. ConfigError: too few GPUs."""
    slots = local_slots(len(jobs), parallel_runs, gpus_per_run)
    print(f"{len(slots)} at a time", flush=True)
    free: SimpleQueue[dict[str, str]] = SimpleQueue()
    for slot in slots:
        free.put({"OMP_NUM_THREADS": str(max(1, num_cores() // len(slots))), **slot})

    def run(job: TrainJob) -> int:
        slot = free.get()
        try:
            return job(slot)
        finally:
            free.put(slot)

    with ThreadPoolExecutor(len(slots)) as pool:
        futures: dict[Future[int], str] = {pool.submit(run, job): name for name, job in jobs.items()}
        pending = set(futures)
        while pending:
            try:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
            except KeyboardInterrupt:
                done = {future for future in pending if future.cancel()}
                pending -= done
            for future in done:
                yield futures[future], STOPPED if future.cancelled() else future.result()


def local_slots(number: int, parallel_runs: int | None, gpus_per_run: int) -> list[dict[str, str]]:
    """Variables for each of at most `number` runs that may run at once, with its GPUs if it has its own."""
    if not gpus_per_run:
        return [{}] * min(number, parallel_runs or num_cores())
    gpus = visible_gpus()
    starts = range(0, len(gpus) - gpus_per_run + 1, gpus_per_run)
    if not starts:
        available = f"{len(gpus)} GPUs are visible here"
        raise ConfigError([f"launcher.gpus_per_run={gpus_per_run}, but {available}; write a smaller number"])
    shares = [",".join(gpus[start : start + gpus_per_run]) for start in starts]
    return [{"CUDA_VISIBLE_DEVICES": share} for share in shares[: min(number, parallel_runs or number)]]


def visible_gpus() -> list[str]:
    """Indices of the NVIDIA GPUs that this environment shows, read from the driver instead of torch."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return answer("nvidia-smi", "--query-gpu=index", "--format=csv,noheader").split()
    return [index for index in chosen.split(",") if index]


def run_by_plugin(launcher: Plugin, jobs: Jobs) -> Iterator[Ended]:
    """Runs all jobs by one of Hydra's launchers, which calls the main function for each, and reports nothing
    before the last has ended. After a Ctrl-C, or the loss of a job, jobs of a cluster continue.
    """
    overrides = [[text for text in job.overrides if not text.startswith("--")] for job in jobs.values()]
    try:
        codes = dict(zip(jobs, map(code_of, launcher.launch(overrides, 0)), strict=True))
    except KeyboardInterrupt:
        codes = dict.fromkeys(jobs, STOPPED)
    except Exception as error:  # of the launcher's library: it refuses an option, or has lost a job
        print(f"error: {type(launcher).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        states = {name: read_manifest(job.folder).get("status") for name, job in jobs.items()}
        codes = {name: 0 if state in ("finished", STOPPED_EARLY) else LOST for name, state in states.items()}
    yield from codes.items()


def code_of(job: JobReturn) -> int:
    """The exit code of the run of one of Hydra's jobs."""
    if job.status is JobStatus.COMPLETED:
        return 0
    error = job._return_value  # the property would raise it
    return int(error.args[0]) if isinstance(error, JobFailed) else LOST
