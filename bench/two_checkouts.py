"""Whole runs by the packages of two checkouts of this repository, in turns: what a change costs, and whether
results are the same.

    python bench/two_checkouts.py FOLDER [--pairs 7] [--set regime=partial algorithm=grpo]

FOLDER holds the other checkout. Both use this environment's installed packages, and what the experiment
`additions` needs beside them comes with the package.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import torch
from measuring import alternating, bench_parser, ratio, write_json
from run_comparison import ROOT, newest, same, train, without_times

from bapo_lightning.system.run_folder.record import read_rows

SETTINGS = ("experiment=additions", "scale.num_rollout_batches=12")
WARM_UP = 8  # updates that are not timed, if there are more


def main() -> None:
    parser = bench_parser(__doc__, pairs=7)
    parser.add_argument("other", type=Path, help="folder of the other checkout")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="overrides of both runs")
    arguments = parser.parse_args()
    checkouts = {"other": arguments.other.resolve(), "this": ROOT}
    seconds: dict[str, list[float]] = {name: [] for name in checkouts}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.pairs):
            runs = {name: Path(folder, f"{number}-{name}") for name in alternating(checkouts, number)}
            for name, run in runs.items():
                train(run, [*SETTINGS, *arguments.set], checkouts[name])
                times = [row["time/step_seconds"] for row in read_rows(run)]
                seconds[name].append(median(times[WARM_UP:] or times))
            print(
                f"pair {number + 1}: {1e3 * seconds['other'][-1]:.1f} ms an update by the other checkout, "
                f"{1e3 * seconds['this'][-1]:.1f} ms by this one; {difference(runs['other'], runs['this'])}",
                flush=True,
            )
    ratios = ratio(seconds["other"], seconds["this"])
    print(f"other / this, median of {ratios.count} pairs (least .. most): {ratios.text(digits=3)}")
    write_json(arguments.json, {"seconds": seconds, "ratio": ratios})


def difference(other: Path, this: Path) -> str:
    if differing := differing_metrics(read_rows(other), read_rows(this)):
        return differing
    if not same(end_weights(other), end_weights(this)):
        return "end weights differ"
    if (other / "ledger.jsonl").read_bytes() != (this / "ledger.jsonl").read_bytes():
        return "ledgers differ"
    return "metrics, end weights and ledger are equal to the bit"


def differing_metrics(other: list[dict[str, Any]], this: list[dict[str, Any]]) -> str:
    """Says in which update runs first differ in a metric that both have, times apart; empty if in none."""
    for one, two in zip(map(without_times, other), map(without_times, this), strict=True):
        names = sorted(name for name in one.keys() & two.keys() if one[name] != two[name])
        if names:
            return f"update {two['step']} differs in {', '.join(names[:3])}" + ", ..." * (len(names) > 3)
    return ""


def end_weights(run: Path) -> dict[str, Any]:
    state = torch.load(newest(run) / "trainer.ckpt", weights_only=True)["state_dict"]
    return {name: weight for name, weight in state.items() if name.startswith("policy.")}


if __name__ == "__main__":
    main()
