"""Launchers of a sweep: processes that share this machine's cores and GPUs, or jobs of a cluster (submitit).

Each launcher takes jobs by run name and returns exit codes by run name, in the order in which runs end,
calling `ended` for each. A run that fails does not stop the others.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from bapo_lightning.errors import ConfigError
from bapo_lightning.runs.sweeps.job import STOPPED, TrainJob, log_file

LOST = 1  # exit code of a job that its cluster ended without a result
_POLL_SECONDS = 2.0
Ended = Callable[[str, int], None]  # name and exit code of a run


def num_cores() -> int:
    """Number of cores that this process may use, which containers and schedulers limit."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def visible_gpus() -> list[str]:
    """Indices of the NVIDIA GPUs that this environment shows, read from the driver instead of torch."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [index for index in chosen.split(",") if index]
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    listed = subprocess.run(query, capture_output=True, text=True, check=False)
    return listed.stdout.split() if listed.returncode == 0 else []


def local_slots(options: Mapping[str, Any], wanted: int | None) -> list[dict[str, str]]:
    """Returns an environment for each run that may run at once, with its GPUs if runs have their own.

    Args:
        options: keys of conf/sweeps/launcher/local.yaml.
        wanted: number of runs at a time that the sweep asks for; `options` overrules it.

    Raises:
        ConfigError: the GPUs do not suffice for one run, or fewer than one run at a time is asked for.
    """
    per_run, parallel = options["gpus_per_run"], options["parallel_runs"]
    number = parallel if parallel is not None else wanted
    if number is not None and (not isinstance(number, int) or number < 1):
        raise ConfigError([f"launcher.parallel_runs={number} must be a whole number of at least 1, or null"])
    if not per_run:
        return [{}] * (number or num_cores())
    gpus = visible_gpus()
    shares = [gpus[start : start + per_run] for start in range(0, len(gpus) - per_run + 1, per_run)]
    if not shares:
        found = f"{len(gpus)} GPUs are visible here"
        raise ConfigError([f"launcher.gpus_per_run={per_run}, but {found}; write a smaller number"])
    return [{"CUDA_VISIBLE_DEVICES": ",".join(share)} for share in shares[:number]]


def run_local(jobs: Mapping[str, TrainJob], slots: list[dict[str, str]], ended: Ended) -> dict[str, int]:
    """Runs a job at a time in each of `slots`; Ctrl-C reaches those that run, and cancels the others."""
    free: SimpleQueue[dict[str, str]] = SimpleQueue()
    for slot in slots:
        free.put(slot)

    def run(job: TrainJob) -> int:
        slot = free.get()
        try:
            return job(slot)
        finally:
            free.put(slot)

    codes: dict[str, int] = {}
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
                codes[futures[future]] = STOPPED if future.cancelled() else future.result()
                ended(futures[future], codes[futures[future]])
    return codes


def run_submitit(
    jobs: Mapping[str, TrainJob], folder: Path, options: Mapping[str, Any], ended: Ended
) -> dict[str, int]:
    """Submits all runs as one job array and waits for them. Ctrl-C leaves the jobs to their cluster.

    Args:
        jobs: jobs by run name.
        folder: folder for submitit's own files and the output of the jobs.
        options: keys of conf/sweeps/launcher/submitit.yaml.
        ended: called when a run has ended.

    Raises:
        ConfigError: submitit is not installed, or it refuses the options.
    """
    try:
        from submitit import AutoExecutor
    except ImportError:
        remedy = '.venv/bin/python -m pip install -e ".[sweep]"'
        raise ConfigError([f"launcher=submitit needs submitit; {remedy}"]) from None
    parameters = {key: value for key, value in options["parameters"].items() if value is not None}
    if options["parallel_runs"] is not None:
        parameters["slurm_array_parallelism"] = options["parallel_runs"]
    try:
        executor = AutoExecutor(folder=folder, cluster=options["cluster"])
        executor.update_parameters(**parameters)
    except (RuntimeError, ValueError, NameError, TypeError) as error:
        remedy = "change launcher.cluster or launcher.parameters"
        raise ConfigError([f"launcher=submitit: {error}; {remedy}"]) from None
    names = list(jobs)
    with executor.batch():
        submitted = [executor.submit(jobs[name]) for name in names]
    ids = ", ".join(job.job_id for job in submitted)
    print(f"submitted to {options['cluster']}: {ids}; their output is in {folder}", flush=True)
    pending = dict(zip(names, submitted, strict=True))
    codes: dict[str, int] = {}
    try:
        while pending:
            for name, job in [*pending.items()]:
                if job.done():
                    codes[name] = _exit_code(job, jobs[name])
                    del pending[name]
                    ended(name, codes[name])
            if pending:
                time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        ids = " ".join(job.job_id for job in pending.values())
        print(f"the jobs go on; to end them: scancel {ids}", flush=True)
    return codes | dict.fromkeys(pending, STOPPED)


def _exit_code(submitted: Any, job: TrainJob) -> int:
    error = submitted.exception()
    if error is None:
        return int(submitted.result())
    with log_file(job.folder).open("a", encoding="utf-8") as log:
        log.write(f"the cluster ended the job without a result: {' '.join(str(error).split())}\n")
    return LOST
