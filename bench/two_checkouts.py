"""Whole runs by the packages of two checkouts of this repository, in turns: what a change costs, and whether
results are the same.

    python bench/two_checkouts.py FOLDER [--pairs 7] [--set regime=partial algorithm=grpo]

FOLDER holds the other checkout. Both use this environment's installed packages, and what the experiment
`additions` needs beside them comes with the package.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from measuring import Spread, add_json_option, ratio, write_json
from run_comparison import without_times

from bapo_lightning.run_folder.record import read_rows

HERE = Path(__file__).resolve().parents[1]
SETTINGS = ("experiment=additions", "scale.num_rollout_batches=12")
WARM_UP = 8  # updates that are not counted


def main() -> None:
    """Prints each pair, the ratio of all, and what differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path, help="folder of the other checkout")
    parser.add_argument("--pairs", type=int, default=7, help="pairs of runs; the order alternates")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="overrides of both runs")
    add_json_option(parser)
    arguments = parser.parse_args()
    checkouts = {"other": arguments.other.resolve(), "this": HERE}
    seconds: dict[str, list[float]] = {name: [] for name in checkouts}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.pairs):
            rows = {
                name: run(checkouts[name], Path(folder, f"{number}-{name}"), arguments.set)
                for name in list(checkouts)[:: 1 if number % 2 == 0 else -1]
            }
            for name, taken in seconds.items():
                taken.append(Spread.of([row["time/step_seconds"] for row in rows[name][WARM_UP:]]).median)
            print(
                f"pair {number + 1}: {1e3 * seconds['other'][-1]:.1f} ms an update by the other checkout, "
                f"{1e3 * seconds['this'][-1]:.1f} ms by this one; {difference(rows['other'], rows['this'])}",
                flush=True,
            )
    ratios = ratio(seconds["other"], seconds["this"])
    print(f"other / this, median of {ratios.count} pairs (least .. most): {ratios.text(digits=3)}")
    write_json(arguments.json, {"seconds": seconds, "ratio": ratios})


def run(checkout: Path, folder: Path, overrides: list[str]) -> list[dict[str, Any]]:
    """Trains with the package of a checkout; returns the rows of the run's metrics."""
    options = [*SETTINGS, *overrides, f"run_folder={folder}"]
    done = subprocess.run(
        [sys.executable, "-m", "bapo_lightning.cli.train", *options],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": str(checkout / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"the run of {checkout} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return read_rows(folder)


def difference(other: list[dict[str, Any]], this: list[dict[str, Any]]) -> str:
    """Says in which update runs first differ in a metric that both have, times apart."""
    for one, two in zip(map(without_times, other), map(without_times, this), strict=True):
        names = sorted(name for name in one.keys() & two.keys() if one[name] != two[name])
        if names:
            return f"update {two['step']} differs in {', '.join(names[:3])}" + ", ..." * (len(names) > 3)
    return "all metrics are equal to the bit"


if __name__ == "__main__":
    main()
