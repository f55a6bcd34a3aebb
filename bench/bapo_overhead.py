"""Price of BAPO's search within an update: `training_step` with searched and with fixed bounds on the same
minibatch, whole and in micro-batches, without and with gradient checkpointing.

    python bench/bapo_overhead.py [--rounds 30]

Each side updates its own copy of the shipped tiny model at the sizes of `experiment=additions`, in turns. The
sides that guess are shown with the share of updates whose guess held. The search is timed alone as well.
"""

from __future__ import annotations

import tempfile
from functools import partial
from itertools import product
from typing import Any, get_args

import torch
from measuring import Spread, bench_parser, in_turns, method, ratio, write_json
from updates import additions, built

from bapo_lightning.configuration.run_config import RunConfig
from bapo_lightning.data.batches.batch import TrainBatch
from bapo_lightning.modules.bapo_module import BapoModule
from bapo_lightning.modules.bound_rules import SearchMode
from bapo_lightning.ranks.rank_group import ALONE
from bapo_lightning.runs.build import build_data_module
from bapo_lightning.runs.inputs import read_inputs

MICRO_BATCHES = 1, 4, 16
MODES = get_args(SearchMode)
WARM_UP = 3  # updates of each algorithm that are not counted


def first_minibatch(config: RunConfig, module: BapoModule) -> TrainBatch:
    """Returns a real minibatch, sampled by the shipped model. The run's ledger goes into its folder."""
    data_module: Any = build_data_module(config, read_inputs(config), ALONE)
    data_module.trainer = type(
        "Fixed", (), {"lightning_module": type("Owner", (), {"policy": module.policy, "policy_version": 0})}
    )()
    return data_module.next_batch()


def sides(budget: int, checkpointing: bool) -> dict[str, BapoModule]:
    """One module for fixed bounds and one for each way to search, with micro-batches of a token budget."""
    common = f"scale.micro_batch_tokens={budget}", f"model.activation_checkpointing={checkpointing}"
    modes = {mode: built(additions("bapo", *common, f"algorithm.bounds.search={mode}")) for mode in MODES}
    return {"fixed": built(additions("grpo", *common)), **modes}


def budget_for(batch: TrainBatch, module: BapoModule, parts: int) -> int:
    """Largest token budget that splits the minibatch into so many micro-batches."""
    weights = module.loss_weights(batch)
    return max(
        budget
        for budget in range(64, sum(batch.lengths) * 2, 16)
        if len(batch.split(budget, weights, module.policy.layout)) == parts
    )


def main() -> None:
    arguments = bench_parser(__doc__, rounds=30, threads=1).parse_args()
    torch.set_num_threads(arguments.threads)
    first = built(additions("bapo"))
    with tempfile.TemporaryDirectory() as folder:
        batch = first_minibatch(additions("bapo", folder=folder), first)
    print(f"{batch.num_tokens} response tokens, {batch.num_samples} samples")
    print(method(arguments.rounds, WARM_UP, torch.get_num_threads()))
    prices: dict[str, Spread] = {}
    for checkpointing, parts in product((False, True), MICRO_BATCHES):
        modules = sides(budget_for(batch, first, parts), checkpointing)
        guessed: list[float] = []
        works = {name: partial(timed_step, module, batch, guessed) for name, module in modules.items()}
        taken = {
            name: [each.cpu for each in turns]
            for name, turns in in_turns(works, arguments.rounds, WARM_UP).items()
        }
        where = f"{parts} micro-batch{'es' * (parts > 1)}{', checkpointing' * checkpointing}"
        print(f"{where}: fixed bounds {Spread.of(taken['fixed']).text('ms of CPU', 1e3)}")
        for mode in MODES:
            prices[f"{where}, {mode}"] = price = ratio(taken[mode], taken["fixed"])
            print(f"  {mode:12} / fixed {price.text(digits=3)}")
        if guessed:
            print(f"  guesses that held: {sum(guessed) / len(guessed):.0%}")
    tables = [first.training_step(batch, 0)["tokens"]]
    alone = in_turns({"search": partial(first.bound_rule.choose, tables)}, arguments.rounds, WARM_UP)[
        "search"
    ]
    seconds = Spread.of([each.wall for each in alone])
    print(f"search alone {seconds.text('ms', 1e3)}")
    write_json(arguments.json, {"price": prices, "search_seconds": seconds})


def timed_step(module: BapoModule, batch: TrainBatch, guessed: list[float]) -> None:
    """One update, which notes whether its guess held."""
    metrics = module.training_step(batch, 0)["metrics"]
    if "search/guessed" in metrics:
        guessed.append(metrics["search/guessed"])


if __name__ == "__main__":
    main()
