"""Reward over the wall clock of generation in passes (`regime=async`) and in a stream (`regime=stream`).

    python bench/reward_over_time.py [--seeds 10] [--batches 56]

Both kinds train the additions with the same seeds, algorithm and sizes, trainer on the first core and engine
on the second (see `async_overlap.py`), and take turns. Each seed's two runs are compared at the same seconds:
shares of the shorter run's time. A run's reward there is the mean of its last `WINDOW` updates. Intervals are
95 % intervals of the mean difference of paired seeds.
"""

from __future__ import annotations

import tempfile
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from statistics import fmean

from async_overlap import QUIET, WORLDS, streamed, train, two_cores
from measuring import Spread, alternating, bench_parser, ratio, write_json

from bapo_lightning.report.intervals import mean_interval
from bapo_lightning.system.run_folder.record import read_rows

SHARES = (0.25, 0.5, 0.75, 1.0)
WINDOW = 8  # updates, of two rollout batches
Curve = tuple[list[float], list[float]]  # seconds since the start, reward of each update


def curve(options: list[str], cores: set[int], seed: int, batches: int) -> Curve:
    """Trains a run and returns its curve."""
    with tempfile.TemporaryDirectory() as outputs:
        folder = Path(outputs, "run")
        train(folder, WORLDS["tiny"], batches, [*options, *QUIET, f"seed={seed}"], cores)
        rows = read_rows(folder)
    return list(accumulate(row["time/step_seconds"] for row in rows)), [row["train/reward"] for row in rows]


def reward_at(points: Curve, seconds: float) -> float:
    """Mean reward of the last updates that had ended by then; 0 before the first."""
    times, rewards = points
    known = rewards[: bisect_right(times, seconds)][-WINDOW:]
    return fmean(known) if known else 0.0


def main() -> None:
    parser = bench_parser(__doc__, seeds=10, batches=56)
    arguments = parser.parse_args()
    kinds = streamed(WORLDS["tiny"], *two_cores())
    curves: dict[str, list[Curve]] = {name: [] for name in kinds}
    for seed in range(arguments.seeds):
        for name in alternating(kinds, seed):
            curves[name].append(curve(*kinds[name], seed, arguments.batches))
            times, _ = curves[name][-1]
            print(f"seed {seed} {name:6} {times[-1]:6.1f} s", flush=True)
    whole = {name: [times[-1] for times, _ in points] for name, points in curves.items()}
    print(f"a run: async / stream {ratio(whole['async'], whole['stream']).text()} of its seconds")
    pairs = list(zip(curves["async"], curves["stream"], strict=True))
    rows = []
    for share in SHARES:
        ends = [share * min(passes[0][-1], stream[0][-1]) for passes, stream in pairs]
        rewards = [
            [reward_at(points, end) for points, end in zip(curves[name], ends, strict=True)] for name in kinds
        ]
        difference = mean_interval([stream - passes for passes, stream in zip(*rewards, strict=True)])
        assert difference is not None
        rows.append({"share": share, "seconds": ends, **dict(zip(kinds, rewards, strict=True))})
        print(
            f"after {Spread.of(ends).text('s', 1, 0)}: async {fmean(rewards[0]):.3f}, stream "
            f"{fmean(rewards[1]):.3f}, stream - async {difference.text(3, '+')}",
            flush=True,
        )
    write_json(arguments.json, {"arguments": vars(arguments), "curves": curves, "compared": rows})


if __name__ == "__main__":
    main()
