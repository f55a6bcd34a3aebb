"""Stage `train`: the quickstart, updates of real shapes, engine against trainer, and ranks against one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import ranks
import torch
from transformers import AutoConfig
from updates import Size, random_batch

from bapo_lightning.library import fit
from bapo_lightning.rollout.hf.engine import HFEngine
from bapo_lightning.rollout.weight_sync import WeightSync
from bapo_lightning.system.run_folder.record import read_rows
from bapo_lightning.system.values import MIXED
from gpu.checks import Check, Finding, Machine, at_least, at_most, holds
from gpu.models import SHAPES, TINY, Architecture, fitting, random_policy, ready_module

BOUNDS = ("bapo/clip_low", "bapo/clip_high")
COMPARED = 8  # updates, after which rounding has grown
RANKS_APART = 0.1  # relative: FSDP2 rounds the norms' inputs, too, which autocast leaves alone
# Dtype of the engine -> options of the trainer's policy, and the largest mean difference in nats.
MISMATCH: dict[str, tuple[dict[str, Any], float]] = {
    "float32": ({}, 1e-3),
    MIXED: ({"is_mixed": True}, 0.1),
    "bfloat16": ({"is_mixed": True}, 0.1),
}


def quickstart(machine: Machine) -> Iterator[Finding]:
    """The quickstart on this device chooses the bounds that a CPU chooses, and its reward rises."""
    batches, size = machine.size(15, 2), machine.size((), ("scale.prompts_per_batch=32",))
    with tempfile.TemporaryDirectory() as folder:
        here = fit(*settings(machine, Path(folder, "here"), batches), *size)
        there = fit(*settings(Machine("cpu"), Path(folder, "there"), 1), *size)
    differences = [
        abs(one - other)
        for name in BOUNDS
        for one, other in zip(here.series(name)[1][:COMPARED], there.series(name)[1][:COMPARED], strict=True)
    ]
    yield at_most("quickstart: bounds from a CPU's, first updates", max(differences), 0.051)
    rewards = here.series("train/reward")[1]
    half = len(rewards) // 2
    rise = fmean(rewards[half:]) - fmean(rewards[:half])
    yield at_least("quickstart: rise of the reward, second half", rise, machine.size(0.1, -1.0))


def settings(machine: Machine, folder: Path, batches: int) -> tuple[str, ...]:
    """Overrides of a quickstart."""
    return (
        *(f"run_folder={folder}", f"trainer.accelerator={machine.size('gpu', 'cpu')}"),
        *(f"rollout.engine.device={machine.device}", f"scale.num_rollout_batches={batches}"),
        *("callbacks.validation.every=0", "callbacks.console.every=1000"),
    )


def real_shapes(machine: Machine) -> Iterator[Finding]:
    """Three updates of random models, and of the largest one on a sample of 32k tokens; all stays finite."""
    usual, long = (
        Size(2, 4, *machine.size((64, 448), (8, 16))),
        Size(1, 1, *machine.size((768, 32_000), (8, 64))),
    )
    shapes = chosen(machine)
    for name, size in [*((name, usual) for name in shapes), (list(shapes)[-1], long)]:
        policy = random_policy(shapes[name], machine.device, is_mixed=machine.on_gpu, **fitting(name))
        batch = random_batch(size, shapes[name]["vocab_size"]).to(machine.device)
        module = ready_module(policy, max(size.tokens // 4, size.prompt_tokens + size.response_tokens))
        outputs = [module.training_step(batch, 0) for _ in range(3)]
        is_finite = all(
            torch.isfinite(torch.tensor([float(each["loss"]), each["metrics"]["train/grad_norm"]])).all()
            for each in outputs
        )
        title = f"{name}, {size.tokens:,} tokens: three updates are finite"
        yield holds(title, is_finite and not module.num_skipped_updates)
        del policy, module, batch, outputs  # before the next one is made


def ranks_in_bfloat16(machine: Machine) -> Iterator[Finding]:
    """The first gradient of FSDP2 over two ranks in bfloat16 against one rank's, of the same samples."""
    changes = (
        "trainer.precision=bf16-mixed",
        "rollout.engine.dtype=float32",
        "rollout.weight_sync.tolerance=0.2",
    )
    norms = []
    for variant in ("single", "fsdp 2"):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary, "run")
            ranks.train(folder, variant, 1, [f"trainer.accelerator={machine.size('gpu', 'cpu')}", *changes])
            norms.append(read_rows(folder)[0]["train/grad_norm"])
    title = "FSDP2 over two ranks in bfloat16: first gradient's norm from one rank's"
    yield at_most(title, abs(norms[1] / norms[0] - 1), RANKS_APART)


def engine_mismatch(machine: Machine) -> Iterator[Finding]:
    """Log-probs of engine and trainer after a sync, in float32 and with a trainer in mixed precision."""
    name = machine.size("Qwen2.5-0.5B", "tiny")
    architecture = chosen(machine)[name]
    for dtype, (precision, limit) in MISMATCH.items():
        policy = random_policy(architecture, machine.device, **precision)
        with tempfile.TemporaryDirectory() as folder:
            AutoConfig.for_model(**architecture).save_pretrained(folder)
            engine = HFEngine(folder, dtype=dtype, device=machine.device)  # type: ignore[arg-type]
        sync = WeightSync(tolerance=10.0, num_probes=8, probe_tokens=32, sampled_tokens=machine.size(64, 8))
        report = sync.push(policy, engine, 1, architecture["vocab_size"])
        note = f"largest {report.max_logprob_difference:.2g}"
        yield at_most(
            f"{name}: engine in {dtype} from trainer", report.mean_logprob_difference, limit, "nats", note
        )


def chosen(machine: Machine) -> dict[str, Architecture]:
    """The shapes to try."""
    names = ("SmolLM2-135M", "Qwen2.5-0.5B", "Qwen2.5-1.5B", "Qwen2.5-7B")
    return {name: SHAPES[name] for name in names} if machine.on_gpu else {"tiny": TINY}


CHECKS = (
    Check(quickstart),
    Check(real_shapes),
    Check(engine_mismatch),
    Check(ranks_in_bfloat16, gpus=2, on_cpu=True),
)
