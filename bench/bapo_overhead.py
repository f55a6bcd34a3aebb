"""Cost of BAPO's search within an update: `training_step` with searched and with fixed bounds, on the same
minibatch of one micro-batch.

    python bench/bapo_overhead.py [--rounds 60]

Both modules update their own copy of the shipped tiny model at the sizes of `experiment=additions`, in turns.
The search is timed alone as well: its share is far smaller than the noise between two updates.
"""

from __future__ import annotations

import tempfile
from functools import partial
from typing import Any

import torch
from measuring import Spread, bench_parser, in_turns, method, ratio, write_json
from updates import additions, built

from bapo_lightning.configuration.run_config import RunConfig
from bapo_lightning.data.batches.batch import TrainBatch
from bapo_lightning.modules.bapo_module import BapoModule
from bapo_lightning.ranks.rank_group import ALONE
from bapo_lightning.runs.build import build_data_module
from bapo_lightning.runs.inputs import read_inputs

WARM_UP = 5  # updates of each algorithm that are not counted


def first_minibatch(config: RunConfig, module: BapoModule) -> TrainBatch:
    """Returns a real minibatch, sampled by the shipped model. The run's ledger goes into its folder."""
    data_module: Any = build_data_module(config, read_inputs(config), ALONE)
    data_module.trainer = type(
        "Fixed", (), {"lightning_module": type("Owner", (), {"policy": module.policy, "policy_version": 0})}
    )()
    return data_module.next_batch()


def main() -> None:
    arguments = bench_parser(__doc__, rounds=60, threads=2).parse_args()
    torch.set_num_threads(arguments.threads)
    modules = {name: built(additions(name)) for name in ("grpo", "bapo")}
    with tempfile.TemporaryDirectory() as folder:
        batch = first_minibatch(additions("bapo", folder=folder), modules["bapo"])
    tables = [modules["bapo"].training_step(batch, 0)["tokens"]]
    works = {f"update, {name}": partial(module.training_step, batch, 0) for name, module in modules.items()}
    works["search alone"] = partial(modules["bapo"].bound_rule.choose, tables)
    taken = {
        name: [turn.wall for turn in turns]
        for name, turns in in_turns(works, arguments.rounds, WARM_UP).items()
    }
    spreads = {name: Spread.of(seconds) for name, seconds in taken.items()}
    print(f"{batch.num_tokens} response tokens, {batch.num_samples} samples, one micro-batch")
    print(method(arguments.rounds, WARM_UP, torch.get_num_threads()))
    for name, spread in spreads.items():
        print(f"  {name:14} {spread.text('ms', 1e3)}")
    overhead = ratio(taken["update, bapo"], taken["update, grpo"])
    share = ratio(taken["search alone"], taken["update, grpo"])
    print(
        f"BAPO / GRPO, neighbouring updates: {overhead.text(digits=3)}; search / update of GRPO: "
        f"{share.median:.2%}"
    )
    write_json(arguments.json, {"wall_seconds": spreads, "bapo_to_grpo": overhead, "search_to_update": share})


if __name__ == "__main__":
    main()
