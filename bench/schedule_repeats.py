"""How far runs repeat that follow a recorded schedule: a run is recorded, and two others follow it.

    python bench/schedule_repeats.py [experiment=smollm2_arithmetic rollout=vllm_child ...]

Overrides are those of the runs, which are asynchronous.
"""

from __future__ import annotations

import sys
import tempfile
from itertools import combinations
from pathlib import Path

import torch
from run_comparison import newest, train, without_times

from bapo_lightning.system.run_folder.checkpoint import TRAINER_FILE
from bapo_lightning.system.run_folder.record import read_rows

SETTINGS = ("experiment=additions", "regime=async", "rollout=hf_child", "scale.num_rollout_batches=4")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        recorded, first, second = (Path(folder, name) for name in ("recorded", "followed", "followed again"))
        options = [*SETTINGS, *sys.argv[1:]]
        train(recorded, options)
        for follower in (first, second):
            train(follower, [*options, f"regime.schedule={recorded}"])
        for one, other in combinations((recorded, first, second), 2):
            print(f"{one.name} and {other.name}: {comparison(one, other)}", flush=True)


def comparison(one: Path, other: Path) -> str:
    rows = [[without_times(row) for row in read_rows(run)] for run in (one, other)]
    equal = [first == second for first, second in zip(*rows, strict=True)]
    num_equal = equal.index(False) if False in equal else len(equal)
    schedules = [(run / "schedule.jsonl").read_bytes() for run in (one, other)]
    held, expected = weights(other), weights(one)
    apart = max(float((held[name] - weight).abs().max()) for name, weight in expected.items())
    return (
        f"schedule {'equal' if schedules[0] == schedules[1] else 'differs'}, metrics equal in the first "
        f"{num_equal} of {len(equal)} updates, last weights at most {apart:.1e} apart"
    )


def weights(folder: Path) -> dict[str, torch.Tensor]:
    checkpoint = torch.load(newest(folder) / TRAINER_FILE, weights_only=True)
    state: dict[str, torch.Tensor] = checkpoint["state_dict"]
    return state


if __name__ == "__main__":
    main()
