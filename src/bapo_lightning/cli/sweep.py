"""`python -m bapo_lightning.cli.sweep sweep=quickstart [overrides]`: all runs of a sweep, several at a time, then one table.

Each run is a process of its own, so one that fails does not stop the others and is listed; runs that finished before are not repeated,
and those that were interrupted go on from their newest checkpoint.
Hydra's own `--multirun` works too; this adds the skipping, the shared cores and the table.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from itertools import product
from pathlib import Path

import yaml

from bapo_lightning.cli.conf_dir import conf_dir
from bapo_lightning.cli.report import main as report
from bapo_lightning.errors import ConfigError, DataError
from bapo_lightning.report.run_folder import read_run

SWEEP_KEY = "sweep="
ROOT_KEY = "output_root="


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0, 1 when a run failed, 2 for a sweep that does not exist."""
    overrides = list(sys.argv[1:] if arguments is None else arguments)
    try:
        name, jobs, num_parallel = read_sweep([item.removeprefix(SWEEP_KEY) for item in overrides if item.startswith(SWEEP_KEY)])
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    root = next((item.removeprefix(ROOT_KEY) for item in overrides if item.startswith(ROOT_KEY)), "outputs")
    common = [item for item in overrides if not item.startswith((SWEEP_KEY, ROOT_KEY))]
    folder = Path(root, "-".join([f"sweep-{name}", *([run_name(common)] if common else [])]))
    folder.mkdir(parents=True, exist_ok=True)
    todo = [job for job in jobs if not is_finished(folder / run_name(job))]
    print(f"{len(jobs)} runs in {folder}: {len(jobs) - len(todo)} finished before, {num_parallel} at a time", flush=True)
    codes = run_all(partial(run_job, folder, common, max(1, (os.cpu_count() or 1) // num_parallel)), todo, num_parallel)
    report([str(folder), "--output", str(folder)])
    failed = [run_name(job) for job, code in zip(todo, codes, strict=True) if code]
    for job in failed:
        print(f"failed: {job}, see {folder / job}.log", file=sys.stderr)
    return 1 if failed else 0


def run_all(run: Callable[[tuple[str, ...]], int], jobs: Sequence[tuple[str, ...]], num_parallel: int) -> list[int]:
    """Exit code of every job. Ctrl-C reaches the running jobs, which end by themselves; those not begun are given up as failed."""
    with ThreadPoolExecutor(num_parallel) as pool:
        futures = [pool.submit(run, job) for job in jobs]
        try:
            wait(futures)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
    return [1 if future.cancelled() else future.result() for future in futures]


def read_sweep(names: Sequence[str]) -> tuple[str, list[tuple[str, ...]], int]:
    """(name, overrides of every run, runs at a time) of `conf/sweep/<name>.yaml`. Raises ConfigError unless one such file is named."""
    choices = {path.stem: path for path in Path(conf_dir(), "sweep").glob("*.yaml")}
    if len(names) != 1 or names[0] not in choices:
        raise ConfigError([f"sweep={','.join(names) or 'nothing'} is no sweep; write one of {', '.join(sorted(choices))}"])
    content = yaml.safe_load(choices[names[0]].read_text(encoding="utf-8"))
    grids = [[f"{key}={value}" for value in values] for key, values in content["parameters"].items()]
    return names[0], list(product(*grids)), content["parallel_runs"]


def run_name(job: Sequence[str]) -> str:
    """Folder name of a run within its sweep; runs that differ from the sweep's file in other overrides have a folder apart."""
    return "-".join(override.rsplit(".", 1)[-1].replace("=", "_") for override in job)


def is_finished(folder: Path) -> bool:
    """Whether a run folder holds a run that reached its end."""
    try:
        return bool(read_run(folder).manifest.get("status") == "finished")
    except DataError:
        return False


def run_job(folder: Path, common: Sequence[str], num_threads: int, job: Sequence[str]) -> int:
    """Train one run to its end, or go on with it, in a process of its own, with its console output in a file; returns the exit code."""
    target = folder / run_name(job)
    command = [sys.executable, "-m", "bapo_lightning.cli.train", *common, *job, f"run_folder={target}", "resume=auto"]
    with Path(f"{target}.log").open("a", encoding="utf-8") as log:
        code = subprocess.run(
            command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": str(num_threads)}, check=False
        ).returncode
    print(f"{'finished' if code == 0 else 'FAILED  '}  {' '.join(job)}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
