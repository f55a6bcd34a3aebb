"""Runs and updates on a fake GPU, for a test: `python -m tests.runs.on_fake_gpu FOLDER CASE ...`.

A case is one of `KINDS` and its arguments. Each prints a line of JSON.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from gpu.checks import Machine
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.strategies import SingleDeviceStrategy
from tests import fake_gpu
from updates import Size, additions, attach, random_batch

from bapo_lightning.configuration.compose import compose_run
from bapo_lightning.configuration.validate import validate
from bapo_lightning.runs import train
from bapo_lightning.runs.build import build_module
from bapo_lightning.system.run_folder.record import read_rows

SMALL = (
    "scale.prompts_per_batch=4", "scale.num_rollout_batches=1", "scale.max_new_tokens=16",
    "scale.validation_problems=4", "trainer.accelerator=cpu",
)  # fmt: skip


def use_instead_of_the_cpu():
    """Lets Lightning's strategy for one device train on the fake one."""
    make = SingleDeviceStrategy.__init__
    SingleDeviceStrategy.__init__ = lambda self, device="cpu", *args, **kwargs: make(
        self, fake_gpu.DEVICE, *args, **kwargs
    )
    train.plot_run = lambda folder: None  # pictures take longer than updates
    CPUAccelerator.setup_device = lambda self, device: None


def update(folder, algorithm):
    """Loss of one update of several micro-batches on the CPU and on the device, and who waited there."""
    config = additions(algorithm, "scale.micro_batch_tokens=64")
    here, there = (build_module(config, config.strategy.make()) for _ in range(2))
    attach(here)
    batch = random_batch(Size(2, 4, 8, 12), here.policy.model.config.vocab_size)
    logp = batch.behaviour_logp
    scores = {"reference_logp": logp, "entry_entropy": -logp, "entry_mean_logp": 2 * logp}
    noted = torch.arange(3).expand(*logp.shape, 3)  # likeliest tokens of each place
    known = logp[..., None].expand(noted.shape)
    batch = replace(batch, scores=scores | {"candidate_behaviour_logp": known}, candidates=noted)
    there.configure_model()
    attach(there.to(fake_gpu.DEVICE))
    moved = batch.to(fake_gpu.DEVICE)
    fake_gpu.waits.clear()
    losses = loss(here, batch), loss(there, moved)
    return {"losses": losses, "waits": Counter(fake_gpu.waits)}


def loss(module, batch):
    found = module.training_step(batch, 0)["loss"]
    return float(getattr(found, "held", found))


def whole(folder, *overrides):
    """A run from its configuration to its report; `updates` is the number of rows that it wrote."""
    before = len(list(read_rows(folder))) if folder.exists() else 0
    config = validate(composed(overrides, folder))
    fake_gpu.waits.clear()
    with redirect_stdout(StringIO()):
        code = train.run(config)
    updates = len(list(read_rows(folder))) - before
    return {"code": code, "waits": Counter(fake_gpu.waits), "updates": updates}


def composed(overrides, folder):
    named = [each for each in overrides if each.startswith("experiment=")] or ["experiment=additions"]
    others = [each for each in overrides if each not in named]
    has_engine = any(each.startswith("rollout=") for each in others)
    engine = [] if has_engine else ["rollout=hf", f"rollout.engine.device={fake_gpu.DEVICE}"]
    return compose_run([*named, *engine, f"run_folder={folder}", *SMALL, *others])


def resumed(folder, *overrides):
    """Another batch of the run of the case before."""
    before = folder.with_name(str(int(folder.name) - 1))
    return whole(before, *overrides, "scale.num_rollout_batches=2", "resume=auto")


def check(folder, stage, name):
    """What a check of `make gpu-check` found bad, and how much it found."""
    (chosen,) = (each for each in import_module(f"gpu.{stage}").CHECKS if each.name == name)
    with redirect_stdout(StringIO()):
        found = list(chosen.run(Machine(str(fake_gpu.DEVICE))))
    return {"bad": [finding.check for finding in found if finding.is_bad], "found": len(found)}


def refused(folder):
    here, there = torch.arange(4.0), torch.arange(4.0, device=fake_gpu.DEVICE)
    tried = {
        "add": lambda: here + there,
        "join a number": lambda: torch.stack([here[0], there[0]]),
        "a mask for the host": lambda: here[there > 1],
        "compare": lambda: torch.equal(here, there),
    }
    return {"tried": list(tried), "refused": [name for name, work in tried.items() if is_refused(work)]}


def is_refused(work):
    try:
        work()
    except fake_gpu.MixedDevices:
        return True
    return False


KINDS: dict[str, Callable[..., dict[str, Any]]] = {
    **{"run": whole, "resumed": resumed},  # OVERRIDES
    "update": update,  # ALGORITHM
    "check": check,  # STAGE NAME
    "refused": refused,
}


def main(folder, *cases):
    use_instead_of_the_cpu()
    with fake_gpu.in_use():
        for number, case in enumerate(cases):
            kind, *words = case.split()
            print(json.dumps(KINDS[kind](Path(folder, str(number)), *words)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
