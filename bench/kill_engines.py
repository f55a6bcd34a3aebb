"""Kills the engine of a run again and again while it samples, and counts what each death costs.

    python bench/kill_engines.py [--kills 5] [--engines hf_child vllm_server ray] [--batches 60]

Each run is a stream, in which one thread samples and another one hands weights over. One death must be one
start of a process and one restart, whoever met it, and never the end of another engine: of two vLLM servers
and of two engines on Ray one is killed at a time.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import psutil
from kill_fleet import log_of, start
from measuring import bench_parser
from run_comparison import ledger_problems, row_problems

from bapo_lightning.system.run_folder.record import read_run

# How a run gets its engines, what their command lines have, how many there are, and the metric of restarts.
ENGINES = {
    "hf_child": (("rollout=hf_child",), "rollout.child.main", 1, "rollout/engine_restarts"),
    "vllm_server": (
        ("rollout=vllm_server", "rollout.engine.num_servers=2", "rollout.engine.cpu_threads=1"),
        *("rollout.vllm.server_main", 2, "rollout/engine_restarts"),
    ),
    "ray": (
        ("rollout=ray", "rollout.engine.actors=2", "rollout.engine.cpus=0.5", "rollout.engine.cpu_threads=1"),
        *("ray::EngineActor", 2, "fleet/lost"),
    ),
}
SETTLED = 2  # updates after a start, before which nothing is killed again


def main() -> int:
    parser = bench_parser(__doc__, has_json=False, kills=5, batches=60, seed=0)
    engines = [name for name in ENGINES if name != "vllm_server" or find_spec("vllm")]
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=engines)
    arguments = parser.parse_args()
    moments, failed = random.Random(arguments.seed), 0
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.engines:
            problems = drill(Path(folder, name), name, arguments.kills, arguments.batches, moments)
            failed += bool(problems)
            for problem in problems:
                print(f"  FAILED: {problem}", flush=True)
    return 1 if failed else 0


def drill(folder: Path, name: str, num_kills: int, batches: int, moments: random.Random) -> list[str]:
    """Trains and kills engines; returns what a death cost too much, and other faults of the run."""
    options, words, count, metric = ENGINES[name]
    run = start(
        folder,
        [
            *("regime=stream", f"scale.num_rollout_batches={batches}", *options),
            f"rollout.max_restarts={num_kills}",
        ],
    )
    seen, killed = set[psutil.Process](), 0
    while run.poll() is None:
        before, until = updates(folder), SETTLED + moments.randint(0, SETTLED)
        while run.poll() is None and not (
            updates(folder) >= before + until and len(seen) >= count + killed and all_work(folder, count)
        ):
            seen |= set(engines_of(run, words))
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.2))
        living = engines_of(run, words)
        if killed < num_kills and living:
            moments.choice(living).kill()
            killed += 1
    if run.returncode:
        return [f"it ended with status {run.returncode}: {log_of(folder)}"]
    starts = len(seen) - count
    restarts = sum(int(row[metric]) for row in read_run(folder).rows)
    problems = [f"the run ended after {killed} kills"] if killed < num_kills else []
    if starts != killed or restarts != killed:
        problems.append(f"{killed} deaths cost {starts} starts and {restarts} restarts")
    problems += ledger_problems(folder) + row_problems(folder)
    verdict = "FAILED" if problems else "one start and one restart for each death"
    print(f"{name}: {killed} deaths, {starts} starts, {restarts} restarts: {verdict}", flush=True)
    return problems


def engines_of(run: subprocess.Popen[bytes], words: str) -> list[psutil.Process]:
    """The engines' processes that live below a run, without those that an engine forks itself."""
    if run.poll() is not None:
        return []
    engines = []
    for process in psutil.Process(run.pid).children(recursive=True):
        try:
            if words in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                engines.append(process)
        except psutil.NoSuchProcess:
            continue
    pids = {process.pid for process in engines}
    return [process for process in engines if process.ppid() not in pids]


def all_work(folder: Path, count: int) -> bool:
    """Whether updates were made, the last one with so many engines, if it says their number."""
    rows = read_run(folder).rows if updates(folder) else []
    return bool(rows) and rows[-1].get("fleet/engines", count) == count


def updates(folder: Path) -> int:
    rows = folder / "metrics.jsonl"
    return rows.read_bytes().count(b"\n") if rows.exists() else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    sys.exit(main())
