"""Price of BAPO's search within an update: one run whose every minibatch is an update of several copies, with
fixed bounds and with each way to search, in turns.

    python bench/bapo_overhead.py [--experiment quickstart] [--staleness 4 32] [--rounds 480] [--set KEY=VAL]

The copy that searches in two passes samples, so minibatches are as old as in a run of that staleness. For
each stretch of the run this prints the sum of CPU seconds of each way, divided by the sum with fixed bounds;
the share of updates whose guess misjudged no token; the mean number of tokens that were scored again; and how
far bounds and weights are from the exact search at the end. A price that is sometimes 1.0 and sometimes 1.8
shows in a ratio of sums, and not in a median of ratios.
"""

from __future__ import annotations

import math
import tempfile
from bisect import bisect_left
from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

import torch
from measuring import Turn, alternating, bench_parser, method, turn, write_json
from updates import attach

from bapo_lightning.configuration.compose import compose_run
from bapo_lightning.configuration.run_config import RunConfig
from bapo_lightning.configuration.validate import validate
from bapo_lightning.data.batches.batch import TrainBatch
from bapo_lightning.modules.bapo_module import BapoModule
from bapo_lightning.runs.build import build_data_module, build_module
from bapo_lightning.runs.command import number_type
from bapo_lightning.runs.inputs import read_inputs
from bapo_lightning.system.ranks.rank_group import ALONE
from bapo_lightning.system.values import Count

MODES = "exact", "guessed"
STRETCHES = 32, 96, 192, 288  # updates at which a stretch of the run ends and another begins
FIXED = "algorithm/bounds=fixed", "algorithm.bounds.low=0.8", "algorithm.bounds.high=1.28"


class Copy:
    """One side: a module that is stepped without a trainer, and what its updates took."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.module = attach(build_module(config, config.strategy.make()))
        self.turns: list[Turn] = []
        self.outputs: list[dict[str, Any]] = []

    def update(self, batch: TrainBatch, budget: int) -> None:
        self.module.micro_batch_tokens = budget
        self.turns.append(turn(lambda: self.outputs.append(self.module.training_step(batch, 0))))
        del self.outputs[-1]["tokens"]
        self.module.trainer.global_step += 1  # type: ignore[misc]

    def seconds(self, updates: slice) -> float:
        return sum(each.cpu for each in self.turns[updates])

    def bounds(self) -> torch.Tensor:
        return torch.stack([torch.stack(list(outputs["bounds"][0][:2])) for outputs in self.outputs])

    def weights(self) -> torch.Tensor:
        return torch.cat([each.detach().flatten() for each in self.module.policy.parameters()])

    def mean(self, metric: str, updates: slice) -> float:
        values = [
            outputs["metrics"][metric] for outputs in self.outputs[updates] if metric in outputs["metrics"]
        ]
        return sum(values) / len(values) if values else math.nan


def budget_for(batch: TrainBatch, module: BapoModule, parts: int) -> int:
    """Smallest token budget that splits the minibatch into at most so many micro-batches."""
    weights = module.loss_weights(batch)
    longest = max(batch.lengths)
    budgets = range(longest, sum(batch.lengths) + longest)
    return budgets[
        bisect_left(
            budgets, -parts, key=lambda budget: -len(batch.split(budget, weights, module.policy.layout))
        )
    ]


def copies(experiment: str, modes: list[str], folder: str, overrides: list[str]) -> dict[str, Copy]:
    def build(*added: str) -> Copy:
        given = [f"experiment={experiment}", "rollout=hf", f"run_folder={folder}", *overrides, *added]
        return Copy(validate(compose_run(given)))

    return {"fixed": build(*FIXED), **{mode: build(f"algorithm.bounds.search={mode}") for mode in modes}}


def run(sides: dict[str, Copy], parts: int, rounds: int) -> None:
    """Gives every side the minibatches of a run of the side `exact`."""
    leader = sides["exact"]
    data_module: Any = build_data_module(leader.config, read_inputs(leader.config), ALONE)
    data_module.trainer = SimpleNamespace(lightning_module=leader.module)
    for number in range(rounds):
        batch = data_module.next_batch()
        budget = budget_for(batch, leader.module, parts)
        for name in alternating(sides, number):
            sides[name].update(batch, budget)
    data_module.close()


def main() -> None:
    parser = bench_parser(__doc__, rounds=480, warm_up=4, threads=1)
    parser.add_argument("--experiment", default="quickstart")
    parser.add_argument(
        "--staleness", type=number_type(Count), nargs="+", default=[4, 32], help="updates on a rollout batch"
    )
    parser.add_argument(
        "--parts", type=number_type(Count), nargs="+", default=[1, 4, 16], help="micro-batches of an update"
    )
    parser.add_argument("--prompts", type=number_type(Count), default=16, help="of an update")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--checkpointing", nargs="+", choices=["false", "true"], default=["false", "true"])
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="overrides of all runs")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(method(given.rounds - given.warm_up, given.warm_up, given.threads), flush=True)
    record: dict[str, Any] = {}
    for staleness, checkpointing, parts in product(given.staleness, given.checkpointing, given.parts):
        common = [
            f"scale.prompts_per_batch={staleness * given.prompts}",
            f"scale.num_rollout_batches={-(-given.rounds // staleness)}",
            "regime.epochs=1",
            f"regime.minibatches={staleness}",
            f"model.activation_checkpointing={checkpointing}",
            *given.set,
        ]
        with tempfile.TemporaryDirectory() as folder:
            sides = copies(given.experiment, given.modes, folder, common)
            run(sides, parts, given.rounds)
        where = f"staleness {staleness}, checkpointing {checkpointing}, {parts} micro-batches"
        record[where] = shown(where, sides, given.warm_up)
    write_json(given.json, record)


def shown(where: str, sides: dict[str, Copy], warm_up: int) -> dict[str, Any]:
    rounds, exact = len(sides["fixed"].turns), sides["exact"]
    ends = [end for end in STRETCHES if warm_up < end < rounds]
    stretches = [slice(*pair) for pair in pairwise([warm_up, *ends, rounds])]
    print(where)
    result: dict[str, Any] = {}
    for mode in list(sides)[1:]:
        side = sides[mode]
        away = (side.weights() - exact.weights()).norm() / exact.weights().norm()
        differ = int((side.bounds() != exact.bounds()).any(1).sum())
        print(f"  {mode}: bounds differ in {differ} of {rounds} updates, weights at the end by {away:.1e}")
        prices = {}
        for updates in [*stretches, slice(warm_up, rounds)]:
            price = side.seconds(updates) / sides["fixed"].seconds(updates)
            held, redone = (side.mean(f"search/{name}", updates) for name in ("guessed", "redone_tokens"))
            name = f"{updates.start} to {updates.stop - 1}"
            prices[name] = {"price": price, "held": held, "redone_tokens": redone}
            guesses = f", guesses held {held:4.0%}, {redone:.0f} tokens scored again" if held == held else ""
            print(f"    updates {name:10} {price:.3f} times{guesses}", flush=True)
        result[mode] = {"prices": prices, "bounds_differ": differ, "weights": float(away)}
    return result


if __name__ == "__main__":
    main()
