"""Kills engines, nodes and the trainer of a run on a Ray fleet at random moments, and compares it with a run
in one process that was left alone.

    python bench/kill_fleet.py [--kills 20] [--victims engine node trainer] [--regimes replay async]

The cluster has three nodes on this machine, with an engine on each. A killed node is replaced by a new one,
and a killed trainer resumes. Synchronous regimes must end with the weights, optimizer, metrics and ledger of
`rollout=hf` to the bit. Always, each work item must have exactly one fate, each update its row, and no token
may be older than the bound.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from kill_and_resume import REGIMES, SETTINGS, updates_saved
from measuring import bench_parser
from run_comparison import differences, ledger_problems, row_problems

from bapo_lightning.system.run_folder.record import read_run

STORE = 80 << 20  # bytes of a node's object store
ROWS = 8  # requests that an engine samples at once, on both sides
ENGINE = "ray::EngineActor"  # how Ray names its processes
VICTIMS = ("engine", "node", "trainer")


class Drill:
    def __init__(self, folder: Path, overrides: Sequence[str]) -> None:
        from ray.cluster_utils import Cluster

        from bapo_lightning.extras.ray.joining import HERE

        node = {"num_cpus": 1, "object_store_memory": STORE}
        self._cluster: Any = Cluster(initialize_head=True, head_node_args=node | HERE)
        self._node, self._folder, self._overrides = node, folder, overrides
        self._others = [self._cluster.add_node(**node) for _ in range(2)]
        self.run = self._started()

    def kill(self, victim: str, moments: random.Random) -> bool:
        """Kills one at random; returns whether there was one."""
        if victim == "engine":
            engines = [process for process in psutil.process_iter() if self._is_engine(process)]
            if engines:
                moments.choice(engines).kill()
            return bool(engines)
        if victim == "node":
            node = self._others.pop(moments.randrange(len(self._others)))
            self._cluster.remove_node(node, allow_graceful=False)
            self._others.append(self._cluster.add_node(**self._node))
            return True
        os.kill(self.run.pid, signal.SIGKILL)
        self.run.wait()
        self.run = self._started()
        return True

    def close(self) -> None:
        self.run.kill()
        self.run.wait()
        self._cluster.shutdown()

    def _started(self) -> subprocess.Popen[bytes]:
        fleet = [
            *("rollout=ray", f"rollout.engine.address={self._cluster.address}", "rollout.engine.actors=3"),
            *(f"rollout.engine.requests_per_call={ROWS}", "rollout.engine.cpu_threads=1"),
            "rollout.max_restarts=1000",
        ]
        return start(self._folder, [*fleet, *self._overrides])

    def _is_engine(self, process: psutil.Process) -> bool:
        """Whether it is an engine of this cluster, and not of another one on this machine."""
        nodes = [self._cluster.head_node, *self._others]
        raylets = {each.process.pid for node in nodes for each in node.all_processes["raylet"]}
        try:
            return process.ppid() in raylets and " ".join(process.cmdline()).startswith(ENGINE)
        except psutil.NoSuchProcess:
            return False


def main() -> int:
    parser = bench_parser(__doc__, has_json=False, kills=20, batches=120, seed=0)
    parser.add_argument("--victims", nargs="+", choices=VICTIMS, default=list(VICTIMS))
    parser.add_argument("--regimes", nargs="+", choices=REGIMES, default=["replay", "async"])
    arguments = parser.parse_args()
    moments, failed = random.Random(arguments.seed), 0
    with tempfile.TemporaryDirectory() as folder:
        for regime in arguments.regimes:
            overrides = [*REGIMES[regime], f"scale.num_rollout_batches={arguments.batches}"]
            whole = Path(folder, regime, "whole")
            whole.parent.mkdir()
            if "async" not in regime:
                alone = start(whole, ["rollout=hf", f"rollout.engine.max_rows={ROWS}", *overrides])
                assert alone.wait() == 0, log_of(whole)
            for victim in arguments.victims:
                inside = whole.with_name(victim)
                problems = drill(inside, whole, overrides, victim, arguments.kills, moments)
                failed += bool(problems)
                for problem in problems[:5]:
                    print(f"  FAILED: {problem}", flush=True)
    return 1 if failed else 0


def drill(
    folder: Path, whole: Path, overrides: Sequence[str], victim: str, num_kills: int, moments: random.Random
) -> list[str]:
    began, killed = time.monotonic(), 0
    fleet_run = Drill(folder, overrides)
    try:
        while killed < num_kills and fleet_run.run.poll() is None:
            before, until = updates_saved(folder), moments.randint(1, pace(overrides, num_kills))
            while fleet_run.run.poll() is None and updates_saved(folder) < before + until:
                time.sleep(0.002)
            time.sleep(moments.uniform(0, 0.2))
            killed += fleet_run.run.poll() is None and fleet_run.kill(victim, moments)
        status = fleet_run.run.wait()
    finally:
        fleet_run.close()
    if status:
        return [f"it ended with status {status}: {log_of(folder)}"]
    problems = [f"the run ended after {killed} kills"] if killed < num_kills else []
    problems += ledger_problems(folder) + row_problems(folder)
    if whole.exists():
        problems += differences(whole, folder)
    record, counts = read_run(folder), Counter[str]()
    for row in record.rows:
        names = ("fleet/lost", "fleet/joined", "fleet/reissued", "rollout/engine_restarts")
        counts.update({name: int(row[name]) for name in names})
    regime = next(each.removeprefix("regime=") for each in overrides if each.startswith("regime="))
    oldest = max(row["staleness/age_max"] for row in record.rows)
    events = ", ".join(f"{name.rpartition('/')[2]} {count}" for name, count in counts.items())
    verdict = (
        "FAILED" if problems else "equal to the bit" if whole.exists() else "one fate each, ages in bounds"
    )
    print(
        f"{regime}, {victim}: {killed} kills, {events}, oldest token {oldest:g}, "
        f"{time.monotonic() - began:.0f} s: {verdict}",
        flush=True,
    )
    return problems


def pace(overrides: Sequence[str], num_kills: int) -> int:
    """The most updates between two kills, so that the last one comes before the end."""
    batches = int(next(each.rpartition("=")[2] for each in overrides if "num_rollout_batches" in each))
    return max(1, 4 * batches // (num_kills + 1))  # a batch is trained on in four updates or more


def start(folder: Path, overrides: Sequence[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bapo_lightning.cli.train", *SETTINGS, *overrides]
    with folder.with_suffix(".log").open("ab") as log:
        command += [f"run_folder={folder}", "resume=auto"]
        return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)


def log_of(folder: Path) -> str:
    return folder.with_suffix(".log").read_text(encoding="utf-8", errors="replace")[-3000:]


if __name__ == "__main__":
    sys.exit(main())
