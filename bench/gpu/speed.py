"""Stage `speed`: tokens a second and share of the peak of updates, what they wait for, and generation."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import AutoConfig
from updates import Size, random_batch

from bapo_lightning.modules.bapo_module import BapoModule
from bapo_lightning.plan.gpus import GPUS
from bapo_lightning.plan.work import work_of_update
from bapo_lightning.rollout.engine import GenerationRequest, RolloutEngine, SamplingParams
from bapo_lightning.rollout.hf.engine import HFEngine
from bapo_lightning.system.values import TrainDtype
from gpu.checks import Check, Finding, Machine, at_least, at_most, measured
from gpu.models import LORA, SHAPES, TINY, fitting, random_policy, ready_module, run_shape

MATRIX_PRODUCTS = ("mm", "gemm", "matmul", "linear", "flash", "attention", "nvjet", "cutlass")
SIZES = (2048, 4096, 8192, 16384)  # tokens of an update
MICRO_BATCH = 8192  # tokens: activations of 1.5B that are all kept take 40 GB
# Tokens of one row, whether adapters are trained, and what prime-rl publishes: tokens a second, GiB.
PUBLISHED = ((16_384, False, 11_900.0, 12.5), (65_536, False, 10_200.0, 19.6), (16_384, True, 13_300.0, 5.1))
WAITS = 4  # the norm of the gradient, the finite check and the log row


def module_of(machine: Machine, name: str, budget: int, **chosen: Any) -> BapoModule:
    """A module of this shape, packed, in mixed precision, with options of `ModelOptions`; 7B are frozen
    bfloat16 with adapters.
    """
    architecture = SHAPES.get(name, TINY)
    options = {"packing": "padding_free", "is_mixed": machine.on_gpu, **fitting(name), **chosen}
    return ready_module(random_policy(architecture, machine.device, **options), budget, "grpo")


def updates(machine: Machine) -> Iterator[Finding]:
    """Tokens a second of packed updates, and their share of the GPU's peak."""
    names, sizes = machine.size((("Qwen2.5-0.5B", "Qwen2.5-1.5B", "Qwen2.5-7B"), SIZES), (("tiny",), (128,)))
    cases = [(name, size, False) for name in names for size in sizes]
    for name, tokens, is_compiled in [*cases, *machine.size([(names[0], sizes[-1], True)], [])]:
        architecture = SHAPES.get(name, TINY)
        size = Size(1, 4, *machine.size((64, tokens // 4 - 64), (8, 24)))
        batch = random_batch(size, architecture["vocab_size"]).to(machine.device)
        module = module_of(machine, name, min(size.tokens, MICRO_BATCH), compile=is_compiled)
        seconds = machine.seconds(partial(module.training_step, batch, 0))
        work = work_of_update(run_shape(architecture, size), size.response_tokens).update / seconds
        title = f"update, {name}, {size.tokens:,} tokens{', compiled layers' * is_compiled}"
        note = f"{work / 1e12:.1f} TFLOP/s{of_peak(work)}"
        yield measured(title, size.tokens / seconds, "tokens/s", note)
        del module, batch  # before the next ones are made


def of_peak(flops_per_second: float) -> str:
    """The share of this GPU's peak, where its data sheet is known."""
    if not torch.cuda.is_available():
        return ""
    name = torch.cuda.get_device_name(0).lower().replace(" ", "_")
    known = [gpu for key, gpu in GPUS.items() if key.split("_")[0] in name]
    return f", MFU {flops_per_second / known[0].flops_per_second:.1%}" if known else ""


def waits(machine: Machine) -> Iterator[Finding]:
    """How often an update makes the host wait for the device, and its time outside of matrix products."""
    name = machine.size("Qwen2.5-1.5B", "tiny")
    size = Size(2, 4, *machine.size((64, 960), (8, 24)))
    batch = random_batch(size, SHAPES.get(name, TINY)["vocab_size"]).to(machine.device)
    module = module_of(machine, name, size.tokens // 2)
    module.training_step(batch, 0)
    machine.wait()
    if machine.on_gpu:
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            module.training_step(batch, 0)
        torch.cuda.set_sync_debug_mode("default")
        places = sorted({f"{each.filename.rpartition('/')[2]}:{each.lineno}" for each in caught})
        yield at_most("update: waits of the host", len(caught), WAITS, note=", ".join(places))
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if machine.on_gpu else [])]
    with profile(activities=kinds) as profiler:
        module.training_step(batch, 0)
        machine.wait()
    kernels = [
        (event.key.lower(), event.self_device_time_total if machine.on_gpu else event.self_cpu_time_total)
        for event in profiler.key_averages()
    ]
    total = sum(taken for _, taken in kernels)
    outside = sum(taken for key, taken in kernels if not any(part in key for part in MATRIX_PRODUCTS))
    longest = sorted(((taken, key) for key, taken in kernels), reverse=True)[:3]
    note = ", ".join(f"{key[:40]} {taken / total:.0%}" for taken, key in longest)
    yield measured("update: time outside of matrix products", outside / total, "of the kernels'", note)


def beside_prime_rl(machine: Machine) -> Iterator[Finding]:
    """Updates of one row of random tokens, against the tokens a second and the memory that prime-rl publishes
    for one H100: Qwen3-0.6B, whole and with adapters on bfloat16 weights, all activations computed again.
    """
    for tokens, is_lora, rate, gibibytes in PUBLISHED:
        name, tokens = machine.size(("Qwen3-0.6B", tokens), ("tiny", tokens // 128))
        options = {"activation_checkpointing": True, **(LORA if is_lora else {})}
        if machine.on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        size = Size(1, 1, 16, tokens - 16)
        batch = random_batch(size, SHAPES.get(name, TINY)["vocab_size"]).to(machine.device)
        module = module_of(machine, name, tokens, **options)
        seconds = machine.seconds(partial(module.training_step, batch, 0))
        title = f"beside prime-rl, {name}, {tokens:,} tokens{', LoRA rank 16' * is_lora}"
        if machine.on_gpu:
            peak = torch.cuda.max_memory_allocated() / 2**30
            yield at_least(title, tokens / seconds, rate, "tokens/s")
            yield at_most(f"{title}: memory", peak, gibibytes, "GiB")
        else:
            yield measured(title, tokens / seconds, "tokens/s")
        del module, batch  # before the next ones are made


def generation(machine: Machine) -> Iterator[Finding]:
    """Tokens a second of the engine of transformers for small models."""
    dtype: TrainDtype = machine.size("bfloat16", "float32")
    yield from _generation(machine, "hf", partial(HFEngine, dtype=dtype, device=machine.device))


def vllm_generation(machine: Machine) -> Iterator[Finding]:
    """Tokens a second of vLLM in this process for the same model."""
    from bapo_lightning.rollout.vllm.local import VLLMLocalEngine
    from bapo_lightning.rollout.vllm.options import VLLMOptions

    options = VLLMOptions(max_model_len=512, max_num_seqs=256, gpu_memory_utilization=0.3)
    yield from _generation(machine, "vLLM", partial(VLLMLocalEngine, options=options))


def _generation(machine: Machine, kind: str, make: Callable[[str], RolloutEngine]) -> Iterator[Finding]:
    name = machine.size("SmolLM2-135M", "tiny")
    architecture = SHAPES.get(name, TINY)
    with tempfile.TemporaryDirectory() as folder:
        AutoConfig.for_model(**architecture).save_pretrained(folder)
        engine = make(folder)
        engine.load_weights(random_policy(architecture, machine.device), 1)
        rows, length = machine.size((256, 256), (8, 8))
        words = architecture["vocab_size"]
        prompt = random_batch(Size(1, 1, 16, 1), words).groups[0].samples[0].rollout.prompt_ids
        requests = [GenerationRequest(prompt, length, seed) for seed in range(rows)]
        sampling = SamplingParams(1.0, stop_token_ids=())
        engine.generate(requests[:2], sampling)
        start = time.perf_counter()
        engine.generate(requests, sampling)
        machine.wait()
        rate = rows * length / (time.perf_counter() - start)
        engine.close()
    yield measured(f"generation, {kind}, {name}, {rows} rows", rate, "tokens/s")


CHECKS = (
    Check(waits),
    Check(generation),
    Check(vllm_generation, packages=("vllm",)),
    Check(updates),
    Check(beside_prime_rl),
)
