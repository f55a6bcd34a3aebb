"""What recording the schedule of an asynchronous run costs: runs that record alternate with runs that do not.

python bench/schedule_recording.py [--pairs 6]
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from measuring import bench_parser

from bapo_lightning.configuration.compose import compose_run
from bapo_lightning.configuration.validate import validate
from bapo_lightning.data.rollouts.schedule import ScheduleRecorder

# Imported before the forks below, so that a run costs no start of Python.
from bapo_lightning.runs.train import run
from bapo_lightning.system.run_folder.record import read_rows

SETTINGS = (
    *("experiment=additions", "regime=async", "rollout=hf_child", "rollout.engine.cpu_threads=1"),
    *("cpu_threads=1", "scale.num_rollout_batches=16", "callbacks.validation.every=0"),
)
WARM_UP = 8  # updates that are not counted


def seconds(folder: Path, records: bool) -> float:
    process = os.fork()
    if process:
        _, status = os.waitpid(process, 0)
        if status:
            sys.exit(f"the run in {folder} failed; see {folder}.log")
        return median(row["time/step_seconds"] for row in read_rows(folder)[WARM_UP:])
    log = os.open(f"{folder}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    status = 1
    try:
        if not records:
            ScheduleRecorder.write = ignored  # type: ignore[method-assign]
            ScheduleRecorder.write_pass = ignored  # type: ignore[method-assign]
        run(validate(compose_run([*SETTINGS, f"run_folder={folder}"])))
        status = 0
    finally:
        os._exit(status)


def ignored(*arguments: Any, **content: Any) -> None:
    """Records nothing."""


def main() -> None:
    pairs = bench_parser(__doc__, has_json=False, pairs=6).parse_args().pairs
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(pairs):
            order = (True, False) if number % 2 else (False, True)
            taken = {records: seconds(Path(folder, f"{number}-{records}"), records) for records in order}
            ratios.append(taken[True] / taken[False])
            print(f"pair {number + 1}: {1e3 * taken[True]:.1f} ms an update recorded, "
                  f"{1e3 * taken[False]:.1f} ms not: ratio {ratios[-1]:.3f}", flush=True)  # fmt: skip
    print(f"median ratio {median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}) of {pairs} pairs")


if __name__ == "__main__":
    main()
