"""Where a second thread helps: an update, a rollout batch and a sync by their operations, with 1 and with 2
threads.

    python bench/threads.py smollm2 [--rounds 8] [--threads 1 2] [--trainer float32] [--engine float32]

Every round executes the same operations in the same order. An operation's time is the shortest at its place
over all rounds, so that other programs on the cores hardly count; what is between operations is Python, which
has one thread. "Others" are the operations that the table does not name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from measuring import bench_parser, write_json
from precision import SAMPLING, SIZES, engine_of, module_of, requests_of
from torch.profiler import ProfilerActivity, profile
from updates import random_batch

from bapo_lightning.rollout.weight_sync import WeightSync
from bapo_lightning.runs.command import number_type
from bapo_lightning.system.values import MIXED, Workers

WORKS = "update", "rollout batch", "sync"
SHOWN = 14  # operations
TOLERANCE = 0.2  # nats, of the proof of a sync
BETWEEN = "Python and gaps"


def operations(work: Callable[[], object]) -> list[tuple[str, float]]:
    """Name and own milliseconds of each operation, in order, and the milliseconds between operations."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        work()
    events = sorted((event for event in profiler.events()), key=lambda event: event.time_range.start)
    named = [(event.name, event.self_cpu_time_total / 1e3) for event in events]
    end, idle = events[0].time_range.start, 0.0
    for event in events:
        idle += max(0.0, event.time_range.start - end)
        end = max(end, event.time_range.end)
    return [*named, (BETWEEN, idle / 1e3)]


def shortest(work: Callable[[], object], threads: int, rounds: int) -> dict[str, float]:
    """Milliseconds by the name of the operation, each the shortest at its place over all rounds."""
    torch.set_num_threads(threads)
    work()
    taken = [operations(work) for _ in range(rounds)]
    names = [name for name, _ in taken[0]]
    alike = [each for each in taken if [name for name, _ in each] == names]
    sums: dict[str, float] = defaultdict(float)
    for place, name in enumerate(names):
        sums[name] += min(each[place][1] for each in alike)
    return dict(sums) | {"rounds": len(alike)}


def main() -> None:
    parser = bench_parser(__doc__, rounds=8)
    parser.add_argument("model", choices=sorted(SIZES))
    parser.add_argument("--threads", type=number_type(Workers), nargs="+", default=[1, 2])
    parser.add_argument("--only", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--trainer", choices=["float32", "mixed"], default="mixed")
    parser.add_argument("--engine", choices=[MIXED, "float32", "bfloat16"], default=MIXED)
    given = parser.parse_args()
    module = module_of(given.model, given.trainer)
    size = SIZES[given.model]
    vocabulary = module.policy.model.config.vocab_size
    batch = random_batch(size, vocabulary)
    engine = engine_of(given.model, given.engine, module.policy)
    works: dict[str, Callable[[], object]] = {
        "update": partial(module.training_step, batch, 0),
        "rollout batch": partial(engine.generate, requests_of(batch, size), SAMPLING),
        "sync": partial(WeightSync(TOLERANCE).push, module.policy, engine, 0, vocabulary),
    }
    record: dict[str, Any] = {}
    for title in given.only:
        record[title] = {threads: shortest(works[title], threads, given.rounds) for threads in given.threads}
        show(title, record[title])
    write_json(given.json, record)


def show(title: str, taken: dict[int, dict[str, float]]) -> None:
    first = next(iter(taken.values()))
    rounds = [times.pop("rounds") for times in taken.values()]
    ordered = sorted(first, key=lambda name: -max(times.get(name, 0.0) for times in taken.values()))
    print(f"{title}: milliseconds with {', '.join(map(str, taken))} threads (rounds alike: {rounds})")
    rows = {name: [times.get(name, 0.0) for times in taken.values()] for name in ordered[:SHOWN]}
    rows["others"] = [sum(times.get(name, 0.0) for name in ordered[SHOWN:]) for times in taken.values()]
    rows["all"] = [sum(times.values()) for times in taken.values()]
    for name, values in rows.items():
        print(f"  {name:44} " + " ".join(f"{value:9.1f}" for value in values), flush=True)


if __name__ == "__main__":
    main()
