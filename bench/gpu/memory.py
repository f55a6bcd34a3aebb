"""Stage `memory`: the plan's prediction against the allocator, fragments, the largest model that fits."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from plan import peak_on_cpu, peak_on_gpu, updates
from updates import Size, random_batch

from bapo_lightning.plan.memory import moments
from bapo_lightning.plan.model_shape import model_shape
from bapo_lightning.plan.run_shape import LoraShape, RunShape
from gpu.checks import Check, Finding, Machine, at_most, holds, measured
from gpu.models import LORA, SHAPES, TINY, Architecture, random_policy, ready_module, run_shape, with_layers

TOLERANCE = 0.10
USABLE = 0.9  # of a GPU's memory, for the search of the largest model
# Name -> options of `random_policy`, and what they are to the plan.
# All in mixed precision, as on GPUs: in float32 torch's attention with grouped heads keeps its scores.
MIXED: tuple[dict[str, Any], dict[str, Any]] = ({"is_mixed": True}, {"compute_bytes": 2, "autocast": True})
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "all activations": MIXED,
    "checkpointing": (MIXED[0] | {"activation_checkpointing": True}, MIXED[1] | {"checkpointing": True}),
    "selective checkpointing": (
        MIXED[0] | {"activation_checkpointing": "selective"},
        MIXED[1] | {"checkpointing": "selective"},
    ),
    "LoRA": (MIXED[0] | {"lora": LORA["lora"], "dtype": LORA["dtype"]}, MIXED[1] | {"stored_bytes": 2}),
}
FRAGMENTS = 1.2  # reserved / allocated memory at their peaks


def update_peak(machine: Machine, architecture: Architecture, size: Size, options: dict[str, Any]) -> int:
    """Returns the peak of allocated bytes of two updates, the model's included."""
    measure = peak_on_gpu if machine.on_gpu else peak_on_cpu
    return measure(partial(updates, architecture, machine.device, size, **options))


def described(machine: Machine, architecture: Architecture, size: Size, variant: str) -> RunShape:
    """Returns the same updates as the plan sees them."""
    differing = dict(VARIANTS[variant][1])
    if variant == "LoRA":
        differing["lora"] = LoraShape(LORA["lora"].rank, tuple(model_shape(architecture).linear_shapes))
    return run_shape(architecture, size, on_gpu=machine.on_gpu, **differing)


def prediction(machine: Machine) -> Iterator[Finding]:
    """Predicted over measured peak of updates of five shapes."""
    shapes = (
        SHAPES
        if machine.on_gpu
        else {"tiny": with_layers({**TINY, "hidden_size": 192, "vocab_size": 8000}, 3)}
    )
    size = Size(3, 4, *machine.size((128, 896), (16, 112)))
    for name, architecture in shapes.items():
        depth = min(architecture["num_hidden_layers"], 8)  # of the largest, float32 state alone would not fit
        cut = with_layers(architecture, depth)
        for variant, (options, _) in VARIANTS.items():
            run = described(machine, cut, size, variant)
            fullest = max(moments(run, size.groups), key=lambda moment: moment.bytes)
            peak = update_peak(machine, cut, size, options)
            note = f"{peak / 1e9:.2f} GB, {depth} layers, fullest at {fullest.name}"
            yield at_most(
                f"plan of {name}, {variant}: off by", abs(fullest.bytes / peak - 1), TOLERANCE, note=note
            )


def fragmentation(machine: Machine) -> Iterator[Finding]:
    """What the allocator holds beside what is used, after updates of random lengths."""
    architecture = machine.size(SHAPES["Qwen2.5-1.5B"], TINY)
    lengths = random.Random(0).choices(range(*machine.size((64, 2048), (4, 32))), k=20)
    policy = random_policy(architecture, machine.device, is_mixed=True, packing="padding_free")
    module = ready_module(policy, machine.size(8192, 128))
    for length in lengths:
        size = Size(2, 4, machine.size(64, 8), length)
        module.training_step(random_batch(size, architecture["vocab_size"]).to(machine.device), 0)
    reserved, used = torch.cuda.max_memory_reserved(), torch.cuda.max_memory_allocated()
    note = f"{used / 1e9:.1f} GB used, PYTORCH_ALLOC_CONF={os.environ.get('PYTORCH_ALLOC_CONF', '')}"
    title = f"{len(lengths)} updates of random lengths: reserved / allocated"
    yield at_most(title, reserved / used, FRAGMENTS, "x", note)


def largest(machine: Machine) -> Iterator[Finding]:
    """The deepest model of 7B's width that the plan lets fit does fit."""
    architecture, size = SHAPES["Qwen2.5-7B"], Size(3, 4, 128, 896)
    room = USABLE * torch.cuda.get_device_properties(0).total_memory
    predicted = partial(described, machine, size=size, variant="checkpointing")

    def peak(depth: int) -> float:
        run = predicted(with_layers(architecture, depth))
        return max(moment.bytes for moment in moments(run, size.groups))

    depth = max((each for each in range(1, 81) if peak(each) <= room), default=0)
    if not depth:
        yield measured("largest model of 7B's width", 0, "layers", f"one takes {peak(1) / 1e9:.0f} GB")
        return
    deepest = with_layers(architecture, depth)
    try:
        taken = update_peak(machine, deepest, size, VARIANTS["checkpointing"][0])
    except torch.OutOfMemoryError as error:
        yield holds(f"{depth} layers of 7B's width fit, as planned", False, str(error).splitlines()[0])
        return
    parameters = model_shape(deepest).num_parameters
    note = f"{parameters / 1e9:.2f} billion parameters in float32, {taken / 1e9:.1f} of {room / 1e9:.1f} GB"
    yield holds(f"{depth} layers of 7B's width fit, as planned", True, note)


CHECKS = (Check(prediction), Check(fragmentation, gpus=1), Check(largest, gpus=1))
