"""What BAPO's search adds to an update: `training_step` with searched against fixed bounds, on the same minibatch of one micro-batch.

    python bench/bapo_overhead.py [--rounds 60]

Both modules update their own copy of the shipped tiny model at the quickstart's sizes. Updates alternate (GRPO, BAPO, GRPO, ...), so that
a drift of the machine's speed meets both alike. Printed: median and quartiles of each, the median of the ratios of neighbouring pairs, and
the search alone, since its share of the update is far smaller than the noise between two updates.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir

from bapo_lightning.cli.build import build_data_module, build_module, make, read_inputs
from bapo_lightning.cli.conf_dir import conf_dir
from bapo_lightning.cli.train import resolve
from bapo_lightning.data.batch import TrainBatch
from bapo_lightning.modules.bapo_module import BapoModule


class Attached:
    """The few services of a trainer that one update needs."""

    global_step = 0


def quickstart(algorithm: str) -> dict[str, Any]:
    """Resolved configuration of the quickstart with another algorithm, in replay."""
    with initialize_config_dir(conf_dir(), version_base="1.3"):
        return resolve(compose("train", overrides=[f"algorithm={algorithm}", "run_folder=unused"]))


def ready_module(config: dict[str, Any]) -> BapoModule:
    """A module that can be stepped without a trainer."""
    module = build_module(config, make(config["regime"]))
    module.configure_model()
    optimizer = module.configure_optimizers()["optimizer"]
    module.optimizers = lambda: optimizer  # type: ignore[assignment, method-assign]
    module.lr_schedulers = lambda: torch.optim.lr_scheduler.ConstantLR(optimizer)  # type: ignore[assignment, method-assign, return-value]
    module.manual_backward = lambda loss: loss.backward()  # type: ignore[assignment, method-assign]
    module._trainer = Attached()  # type: ignore[assignment]
    return module


def first_minibatch(config: dict[str, Any], module: BapoModule, folder: Path) -> TrainBatch:
    """A real minibatch, sampled by the shipped model. The run's ledger goes into `folder`."""
    data_module = build_data_module(config, read_inputs(config), folder)
    data_module.trainer = type("Fixed", (), {"lightning_module": type("Owner", (), {"policy": module.policy, "policy_version": 0})})()
    return data_module.next_batch()


def seconds(call: partial[Any]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def describe(name: str, times: list[float]) -> str:
    """Median and quartiles in milliseconds."""
    low, middle, high = statistics.quantiles(times, n=4)
    return f"{name:<22} median {middle * 1e3:8.3f} ms   quartiles {low * 1e3:8.3f} .. {high * 1e3:8.3f} ms"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60, help="updates of each kind, after 5 that are not counted")
    rounds = parser.parse_args().rounds
    modules = {name: ready_module(quickstart(name)) for name in ("grpo", "bapo")}
    with tempfile.TemporaryDirectory() as folder:
        batch = first_minibatch(quickstart("bapo"), modules["bapo"], Path(folder))
    steps = {name: partial(module.training_step, batch, 0) for name, module in modules.items()}
    times: dict[str, list[float]] = {"grpo": [], "bapo": [], "search": []}
    tables = [steps["bapo"]()["tokens"]]
    for index in range(rounds + 5):
        measured = {name: seconds(step) for name, step in (steps.items() if index % 2 else reversed(steps.items()))}
        measured["search"] = seconds(partial(modules["bapo"].bound_rule.choose, tables))
        for name, value in measured.items() if index >= 5 else ():
            times[name].append(value)
    ratios = [bapo / grpo for bapo, grpo in zip(times["bapo"], times["grpo"], strict=True)]
    print(f"{batch.num_tokens} response tokens, {batch.num_samples} samples, one micro-batch, {rounds} rounds")
    print(describe("update, fixed bounds", times["grpo"]))
    print(describe("update, BAPO", times["bapo"]))
    print(describe("search alone", times["search"]))
    print(f"BAPO / fixed: median of pairs {statistics.median(ratios):.4f}")
    print(f"search / update: {statistics.median(times['search']) / statistics.median(times['grpo']):.2%} (of medians)")


if __name__ == "__main__":
    main()
