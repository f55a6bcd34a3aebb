"""Stage `kernels`: single operations against float64, against each other, and against the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import torch
from bound_search import curves_and_search, host_syncs, lognormal_tokens
from token_scores import naive_scores
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from updates import Size, random_batch

from bapo_lightning.data.batches.model_input import model_input
from bapo_lightning.modules import token_scores as scores_module
from bapo_lightning.modules.liger_head import has_liger_head, is_hopper, liger_scores
from bapo_lightning.modules.policy.packing import has_varlen
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.modules.token_scores import kernels, longest_chunk, token_scores
from bapo_lightning.objectives.bounds import bound_grid
from bapo_lightning.system.chunks import CHUNK_ELEMENTS
from bapo_lightning.types import Rollout
from gpu.checks import Check, Finding, Machine, at_most, holds, measured, skipped
from gpu.models import SHAPES, TINY, random_policy, ready_module, with_layers

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Nats, and relative error of a gradient: float32 sums in another order; bfloat16 gradients have 8 bits.
ACCURACY = {"float32": (1e-4, 1e-4), "bfloat16": (1e-2, 2e-2)}
# Kernels of attention, and Liger's, which change their module for good; with the package that each needs.
KERNELS = {
    "sdpa": None,
    "flash_attention_2": "flash_attn",
    "varlen": None,
    "flex_attention": None,
    "Liger": "liger_kernel",
}
# Mean difference of padded and packed log-probs in nats, and relative difference of gradients.
PACKED = {"float32": (1e-3, 1e-3), "bfloat16": (0.05, 0.1)}
# Products of the size of the logits' in token scores, and how often their float32 numbers are read or written
# elsewhere. Forward: scaled, largest, shifted, powers, their sum, times logits, its sum, and the copy of a
# product of 16 bits; backward as much of it again, gradients, rounded, and the sum of those of the head.
SWEEPS = {"forward": (1, 14), "forward and backward": (4, 30)}
# With one kernel a pass: reads of the logits, and their gradient of 16 bits.
KERNEL_SWEEPS = {"forward": (1, 2), "forward and backward": (4, 6)}
HEAD_LIMIT = 18.0  # ms of 8,192 tokens x 152k x 896, forward and backward: twice the products at the peak
SLACK = 1.5  # for what lies between kernels, and rows that are shorter than a pass over all
Scores = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def operands(machine: Machine, tokens: int, width: int, vocabulary: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns hidden states [N, D], head [V, D] and targets [N], float32."""
    torch.manual_seed(0)
    hidden = torch.randn(tokens, width, device=machine.device)
    head = torch.randn(vocabulary, width, device=machine.device) * width**-0.5
    return hidden, head, torch.randint(vocabulary, (tokens,), device=machine.device)


def gradients(scores: Scores, hidden: Tensor, head: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns log-probs and the gradients of their sum in both factors."""
    left, right = hidden.clone().requires_grad_(), head.clone().requires_grad_()
    logp, _ = scores(left, right, targets)
    logp.sum().backward()
    assert left.grad is not None and right.grad is not None
    return logp.detach(), left.grad, right.grad


def apart(value: Tensor, expected: Tensor) -> float:
    """Returns the norm of the difference, relative to that of what is expected."""
    return float((value.double() - expected.double()).norm() / expected.double().norm())


def scores_accuracy(machine: Machine) -> Iterator[Finding]:
    """Token scores against naive ones in float64, forward and backward."""
    hidden, head, targets = operands(machine, *machine.size((256, 896, 151_936), (32, 64, 2000)))
    for name, dtype in DTYPES.items():
        rounded = hidden.to(dtype), head.to(dtype)
        expected = gradients(naive_scores, *(each.double() for each in rounded), targets)
        fused = gradients(token_scores, *rounded, targets)
        nats, relative = ACCURACY[name]
        error = float((fused[0].double() - expected[0]).abs().max())
        yield at_most(f"token scores, {name}: log-probs from float64", error, nats, "nats")
        for factor, ours, theirs in zip(("hidden states", "head"), fused[1:], expected[1:], strict=True):
            yield at_most(f"token scores, {name}: gradient of the {factor}", apart(ours, theirs), relative)


def forward(scores: Scores, *given: Tensor) -> None:
    """Scores without a graph."""
    with torch.no_grad():
        scores(*given)


def scores_speed(machine: Machine) -> Iterator[Finding]:
    """Token scores against what their products and passes over the logits take by themselves; peak memory
    with the shortest chunks against naive ones.
    """
    hidden, head, targets = operands(machine, *machine.size((8192, 1024, 152_000), (64, 64, 2000)))
    for name, dtype in DTYPES.items():
        given = hidden.to(dtype), head.to(dtype), targets
        product, one_pass = parts_of_scores(machine, *given[:2])
        for passes, work in {"forward": forward, "forward and backward": gradients}.items():
            title = f"token scores, {name}, {passes}"
            works = [partial(work, scores, *given) for scores in (naive_scores, token_scores)]
            naive, fused = (machine.seconds(each) for each in works)
            products, sweeps = (KERNEL_SWEEPS if machine.on_gpu and kernels() else SWEEPS)[passes]
            least = products * product + sweeps * one_pass
            note = f"{1e3 * fused:.1f} ms, naive {1e3 * naive:.1f} ms{without_kernels(machine, works[1])}"
            if not machine.on_gpu:
                yield measured(f"{title}: time / its products and passes", fused / least, "x", note)
                continue
            yield at_most(f"{title}: time / its products and passes", fused / least, SLACK, "x", note)
            least_chunk = partial(token_scores, chunk_tokens=CHUNK_ELEMENTS // len(head))
            works[1] = partial(work, least_chunk, *given)
            naive, fused = (machine.peak_bytes(each) for each in works)
            note = f"{fused / 1e9:.2f} GB, naive {naive / 1e9:.2f} GB"
            yield at_most(f"{title}: peak memory / naive", fused / naive, 0.3, "x", note)


def liger_head(machine: Machine) -> Iterator[Finding]:
    """Liger's head against the own one with gradients, and the clock; on a CPU its PyTorch version."""
    if machine.on_gpu and not (is_hopper(torch.device(machine.device)) and has_liger_head()):
        yield skipped("Liger's head", "needs a Hopper GPU and liger-kernel[cutedsl]")
        return
    hidden, head, targets = operands(machine, *machine.size((8192, 896, 152_000), (64, 64, 2000)))
    dtype = machine.size(torch.bfloat16, torch.float32)
    how = {"temperature": 1.0, "entropy_requires_grad": False, "half_factors": False}
    works = [
        partial(gradients, partial(score, **how), hidden.to(dtype), head.to(dtype), targets)
        for score in (token_scores, liger_scores)
    ]
    own, start = works[0](), time.perf_counter()
    found = works[1]()
    machine.wait()
    yield measured("Liger's head: first passes, which compile it", time.perf_counter() - start, "s")
    nats, relative = ACCURACY["bfloat16"]
    error = float((found[0] - own[0]).abs().max())
    yield at_most("Liger's head: log-probs from the own", error, nats, "nats")
    for factor, one, other in zip(("hidden states", "head"), found[1:], own[1:], strict=True):
        yield at_most(f"Liger's head: gradient of the {factor} from the own", apart(one, other), relative)
    plain, fused = (1e3 * machine.seconds(work) for work in works)
    title, note = "Liger's head: forward and backward", f"own {plain:.1f} ms"
    yield (
        at_most(title, fused, HEAD_LIMIT, "ms", note)
        if machine.on_gpu
        else measured(title, fused, "ms", note)
    )


def without_kernels(machine: Machine, work: Callable[[], object]) -> str:
    """What the same takes block by block; empty where it has been measured already."""
    if not machine.on_gpu or kernels() is None:
        return ""
    with patch.object(scores_module, "kernels", lambda: None):
        return f", block by block {1e3 * machine.seconds(work):.1f} ms"


def parts_of_scores(machine: Machine, hidden: Tensor, head: Tensor) -> tuple[float, float]:
    """Returns the seconds of the product that makes the logits, and of reading or writing these once."""
    rows = min(len(hidden), longest_chunk(hidden.device, len(head)))
    logits = torch.empty(rows, len(head), device=machine.device)
    share = len(hidden) / rows
    product = machine.seconds(lambda: torch.mm(hidden[:rows], head.T))
    return share * product, share * machine.seconds(lambda: logits.mul_(1.0)) / 2


def packing(machine: Machine) -> Iterator[Finding]:
    """Rows without padding, for each attention kernel, and Liger's against plain rows, with gradients."""
    architecture = machine.size(with_layers(SHAPES["Qwen2.5-0.5B"], 4), TINY)
    batch = random_batch(Size(4, 4, *machine.size((64, 256), (8, 16))), architecture["vocab_size"])
    rollouts = [sample.rollout for group in batch.groups for sample in group.samples]
    cut = [shorter(rollout, 1 + 7 * number % rollout.length) for number, rollout in enumerate(rollouts)]
    dtype = machine.size("bfloat16", "float32")

    def scored(**options: Any) -> tuple[Tensor, Tensor]:
        policy = random_policy(architecture, machine.device, is_mixed=machine.on_gpu, **options)
        logp = policy(model_input(cut, torch.device(machine.device), policy.layout))[0].float()
        logp.sum().backward()
        return logp.detach(), gradient_of(policy)

    plain = scored()
    for name, package in KERNELS.items():
        title = f"as plain rows: {name}, {dtype}"
        if name != "sdpa" and not machine.on_gpu:
            yield skipped(title, "needs a GPU")
        elif name == "varlen" and not has_varlen():
            yield skipped(title, "needs torch 2.13")
        elif package is not None and find_spec(package) is None:
            yield skipped(title, f"{package} is not installed")
        else:
            packed = {"packing": "padding_free", "attention": name}
            packed_row = scored(**({"liger": True} if name == "Liger" else packed))
            yield at_most(title, float((packed_row[0] - plain[0]).abs().mean()), PACKED[dtype][0], "nats")
            yield at_most(f"{title}, gradient", apart(packed_row[1], plain[1]), PACKED[dtype][1])


def gradient_of(policy: Policy) -> Tensor:
    """Returns the gradients of all weights as one vector."""
    return torch.cat([each.grad.flatten() for each in policy.parameters() if each.grad is not None])


def shorter(rollout: Rollout, length: int) -> Rollout:
    """Returns the rollout's first tokens."""
    (segment,) = rollout.segments
    cut = replace(segment, token_ids=segment.token_ids[:length], logprobs=segment.logprobs[:length])
    return replace(rollout, segments=(cut,))


def checkpointing(machine: Machine) -> Iterator[Finding]:
    """Activation checkpointing changes no gradient, and takes less memory."""
    architecture = machine.size(with_layers(SHAPES["Qwen2.5-0.5B"], 8), TINY)
    size = Size(1, 4, *machine.size((64, 960), (8, 16)))
    batch = random_batch(size, architecture["vocab_size"]).to(machine.device)
    weights = batch.response_mask / batch.num_tokens
    gradients_of, peaks = [], []
    for kept in (False, "selective", True):
        policy = random_policy(architecture, machine.device, activation_checkpointing=kept)
        (micro_batch,) = batch.split(size.tokens, weights, policy.layout)

        def work(policy=policy, micro_batch=micro_batch) -> None:  # type: ignore[no-untyped-def]
            policy.zero_grad(set_to_none=True)
            (micro_batch.weight * policy(micro_batch)[0]).sum().backward()

        peaks.append(machine.peak_bytes(work) if machine.on_gpu else 0)
        work()
        gradients_of.append(gradient_of(policy))
    names = "selective checkpointing", "checkpointing"
    for name, gradient, peak in zip(names, gradients_of[1:], peaks[1:], strict=True):
        yield at_most(f"{name}: gradient from that without", apart(gradient, gradients_of[0]), 1e-4)
        if machine.on_gpu:
            yield at_most(f"{name}: peak memory / without", peak / peaks[0], 1.0, "x")


def search(machine: Machine) -> Iterator[Finding]:
    """The bound search never waits for the device; its kernels and its time."""
    tokens = tuple(each.to(machine.device) for each in lognormal_tokens(machine.size(1_000_000, 10_000), 0.3))
    lows, highs = (
        grid.to(machine.device) for grid in (bound_grid(0.6, 0.9, 0.02), bound_grid(1.2, 3.0, 0.05))
    )

    def work() -> object:
        return curves_and_search(tokens, lows, highs, 0.5, "gradient")  # type: ignore[arg-type]

    seconds = machine.seconds(work)
    if machine.on_gpu:
        torch.cuda.set_sync_debug_mode("error")
        try:
            work()
            waits = 0
        except RuntimeError as error:
            waits = 1
            yield measured("bound search: where it waits", 1, note=str(error).splitlines()[0])
        finally:
            torch.cuda.set_sync_debug_mode("default")
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            work()
            machine.wait()
        kernels = sum(event.device_type.name == "CUDA" for event in profiler.events())
        yield measured("bound search: kernels", kernels)
    else:
        waits = host_syncs(work)
    yield at_most("bound search: waits of the host", waits, 0)
    yield measured("bound search: time", 1e6 * seconds, "us", f"{len(tokens[0]):,} tokens")


def deterministic(machine: Machine) -> Iterator[Finding]:
    """Two runs of two updates agree to the bit in torch's deterministic mode; whether they do without it."""
    architecture = machine.size(with_layers(SHAPES["SmolLM2-135M"], 4), TINY)
    size = Size(2, 4, *machine.size((64, 192), (8, 16)))
    batch = random_batch(size, architecture["vocab_size"]).to(machine.device)

    def weights() -> Tensor:
        module = ready_module(random_policy(architecture, machine.device), size.tokens)
        for _ in range(2):
            module.training_step(batch, 0)
        return torch.cat([each.detach().flatten() for each in module.policy.parameters()])

    yield measured("two runs alike to the bit", float(torch.equal(weights(), weights())))
    torch.use_deterministic_algorithms(True)
    try:
        yield holds("two runs alike to the bit, deterministic mode", torch.equal(weights(), weights()))
    finally:
        torch.use_deterministic_algorithms(False)


CHECKS = tuple(
    map(Check, (scores_accuracy, scores_speed, liger_head, packing, checkpointing, search, deterministic))
)
