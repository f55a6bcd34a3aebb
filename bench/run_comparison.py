"""Runs that are compared: a run in a process of its own, its ranks, faults in its records, and differences of
two that must be equal.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from bapo_lightning.system.run_folder.checkpoint import list_checkpoints
from bapo_lightning.system.run_folder.record import read_run

ROOT = Path(__file__).resolve().parents[1]


def train(
    folder: Path,
    overrides: Sequence[str],
    checkout: Path = ROOT,
    preexec_fn: Callable[[], object] | None = None,
    **environment: str,
) -> None:
    """Trains by the package of a checkout, in a process whose output appears only if it fails; that ends this
    one.
    """
    done = subprocess.run(
        [sys.executable, "-m", "bapo_lightning.cli.train", *overrides, f"run_folder={folder}"],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": str(checkout / "src")} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=preexec_fn,
    )
    if done.returncode:
        sys.exit(f"the run of {checkout} ended with {done.returncode}:\n{done.stdout}")


def ranks_of(folder: Path) -> list[psutil.Process]:
    """Returns the processes that are ranks of the run in `folder`, of which a run of one rank has none."""
    of_run = f"run_folder={folder}"
    return [
        process
        for process in psutil.process_iter(["cmdline", "environ"])
        if of_run in (process.info["cmdline"] or ()) and "RANK" in (process.info["environ"] or {})
    ]


def ledger_problems(folder: Path) -> list[str]:
    """Checks that every epoch but the last holds every problem exactly once, and the last at most once."""
    items = Counter((row["epoch"], row["problem"]) for row in read_run(folder).ledger)
    epochs = Counter(epoch for epoch, _ in items)
    repeated = [f"work item {item} has {count} fates" for item, count in items.items() if count != 1]
    incomplete = [epoch for epoch in range(max(epochs)) if epochs[epoch] != 30]
    return repeated + [f"epoch {epoch} has {epochs[epoch]} problems" for epoch in incomplete]


def row_problems(folder: Path) -> list[str]:
    """Checks that every update has one row and no token is older than the bound."""
    record = read_run(folder)
    regime = record.config["regime"]
    updates = record.config["scale"]["num_rollout_batches"] * regime["epochs"] * regime["minibatches"]
    steps = [row["step"] for row in record.rows]
    problems = [] if steps == list(range(updates)) and not record.rolled_back_rows else [f"updates {steps}"]
    oldest = max(row["staleness/age_max"] for row in record.rows)
    if regime["max_age"] is not None and oldest > regime["max_age"]:
        problems.append(f"a token of age {oldest}")
    return problems


def differences(whole: Path, killed: Path) -> list[str]:
    """Checks that weights, optimizer, callbacks, metrics and ledger are equal to the bit."""
    from bapo_lightning.callbacks.run_checkpoint import DirectCheckpointIO

    paths = [newest(folder) / "trainer.ckpt" for folder in (whole, killed)]
    states = [DirectCheckpointIO().load_checkpoint(path, weights_only=True) for path in paths]
    problems = [f"{key} differs" for key in states[0] if not same(states[0][key], states[1].get(key))]
    metrics = [[without_times(row) for row in read_run(folder).rows] for folder in (whole, killed)]
    problems += [f"metrics of update {a['step']} differ" for a, b in zip(*metrics, strict=True) if a != b]
    for name in ("ledger.jsonl", "schedule.jsonl"):
        files = [folder / name for folder in (whole, killed) if (folder / name).exists()]
        if len({file.read_bytes() for file in files}) > 1:
            problems.append(f"{name} differs")
    return problems


def newest(folder: Path) -> Path:
    return list_checkpoints(folder / "checkpoints")[0]


def same(one: Any, other: Any) -> bool:
    if hasattr(one, "untyped_storage"):
        if one.shape != other.shape:
            return False
        is_no_number = (one != one) & (other != other)  # shares of an update that nothing is learned from
        return bool(((one == other) | is_no_number).all())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def without_times(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row of metrics without wall times, rates, and what happened to the engines of a fleet."""
    kept = [name for name in row if "second" not in name and not name.startswith("fleet/")]
    return {name: json.loads(json.dumps(row[name])) for name in kept}
