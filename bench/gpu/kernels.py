"""Stage `kernels`: single operations against float64, against each other, and against the clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

import torch
from bound_search import curves_and_search, host_syncs, lognormal_tokens
from token_scores import naive_scores
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from updates import Size, random_batch

from bapo_lightning.data.batches.model_input import model_input
from bapo_lightning.modules.token_scores import token_scores
from bapo_lightning.objectives.bounds import bound_grid
from bapo_lightning.types import Rollout
from gpu.checks import Check, Finding, Machine, at_most, holds, measured, skipped
from gpu.models import SHAPES, TINY, random_policy, ready_module, with_layers

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Nats, and relative error of a gradient: float32 sums in another order; bfloat16 gradients have 8 bits.
ACCURACY = {"float32": (1e-4, 1e-4), "bfloat16": (1e-2, 2e-2)}
KERNELS = {"sdpa": "float32", "flash_attention_2": "bfloat16", "flex_attention": "float32"}
PACKED_NATS = {"float32": 1e-3, "bfloat16": 0.05}  # mean difference of padded and packed log-probs
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


def apart(found: Tensor, expected: Tensor) -> float:
    """Returns the norm of the difference, relative to that of what is expected."""
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def scores_accuracy(machine: Machine) -> Iterator[Finding]:
    """Token scores against naive ones in float64, forward and backward."""
    hidden, head, targets = operands(machine, *machine.size((256, 896, 151_936), (32, 64, 2000)))
    for name, dtype in DTYPES.items():
        rounded = hidden.to(dtype), head.to(dtype)
        expected = gradients(naive_scores, *(each.double() for each in rounded), targets)
        found = gradients(token_scores, *rounded, targets)
        nats, relative = ACCURACY[name]
        error = float((found[0].double() - expected[0]).abs().max())
        yield at_most(f"token scores, {name}: log-probs from float64", error, nats, "nats")
        for factor, own, theirs in zip(("hidden states", "head"), found[1:], expected[1:], strict=True):
            yield at_most(f"token scores, {name}: gradient of the {factor}", apart(own, theirs), relative)


def forward(scores: Scores, *given: Tensor) -> None:
    """Scores without a graph."""
    with torch.no_grad():
        scores(*given)


def scores_speed(machine: Machine) -> Iterator[Finding]:
    """Token scores against naive ones: time and peak memory."""
    hidden, head, targets = operands(machine, *machine.size((8192, 1024, 152_000), (64, 64, 2000)))
    for name, dtype in DTYPES.items():
        given = hidden.to(dtype), head.to(dtype), targets
        for passes, work in {"forward": forward, "forward and backward": gradients}.items():
            title = f"token scores, {name}, {passes}"
            works = [partial(work, scores, *given) for scores in (naive_scores, token_scores)]
            naive, fused = (machine.seconds(each) for each in works)
            note = f"{1e3 * fused:.1f} ms, naive {1e3 * naive:.1f} ms"
            if not machine.on_gpu:
                yield measured(f"{title}: time / naive", fused / naive, "x", note)
                continue
            yield at_most(f"{title}: time / naive", fused / naive, 1.15, "x", note)
            naive, fused = (machine.peak_bytes(each) for each in works)
            note = f"{fused / 1e9:.2f} GB, naive {naive / 1e9:.2f} GB"
            yield at_most(f"{title}: peak memory / naive", fused / naive, 0.3, "x", note)


def scores_and_liger(machine: Machine) -> Iterator[Finding]:
    """Token scores against Liger's fused linear loss, which has no entropy."""
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    def liger(hidden: Tensor, head: Tensor, targets: Tensor) -> None:
        left, right = hidden.clone().requires_grad_(), head.clone().requires_grad_()
        loss = LigerFusedLinearCrossEntropyFunction.apply(left, right, targets)
        (loss[0] if isinstance(loss, tuple) else loss).backward()

    hidden, head, targets = operands(machine, 8192, 1024, 152_000)
    given = hidden.bfloat16(), head.bfloat16(), targets
    theirs, own = (
        machine.seconds(lambda: liger(*given)),
        machine.seconds(lambda: gradients(token_scores, *given)),
    )
    yield measured("token scores, bfloat16: time / Liger's loss", own / theirs, "x", f"{1e3 * theirs:.1f} ms")
    theirs, own = (
        machine.peak_bytes(work) for work in (lambda: liger(*given), lambda: gradients(token_scores, *given))
    )
    yield measured("token scores, bfloat16: peak memory / Liger's loss", own / theirs, "x")


def packing(machine: Machine) -> Iterator[Finding]:
    """Rows without padding against padded ones, for each attention kernel."""
    architecture = machine.size(with_layers(SHAPES["Qwen2.5-0.5B"], 4), TINY)
    batch = random_batch(Size(4, 4, *machine.size((64, 256), (8, 16))), architecture["vocab_size"])
    rollouts = [sample.rollout for group in batch.groups for sample in group.samples]
    cut = [shorter(rollout, 1 + 7 * number % rollout.length) for number, rollout in enumerate(rollouts)]
    for kernel, dtype in KERNELS.items():
        if kernel != "sdpa" and not machine.on_gpu:
            yield skipped(f"packed = padded, {kernel}", "needs a GPU")
            continue
        if kernel == "flash_attention_2" and find_spec("flash_attn") is None:
            yield skipped(f"packed = padded, {kernel}", "flash-attn is not installed")
            continue
        found = []
        for options in ({"packing": "none"}, {"packing": "padding_free", "attention": kernel}):
            policy = random_policy(architecture, machine.device, dtype=dtype, **options)
            with torch.no_grad():
                found.append(policy(model_input(cut, torch.device(machine.device), policy.layout))[0].float())
        difference = float((found[0] - found[1]).abs().mean())
        yield at_most(f"packed = padded, {kernel}, {dtype}", difference, PACKED_NATS[dtype], "nats")


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
    found, peaks = [], []
    for options in ({}, {"activation_checkpointing": True}):
        policy = random_policy(architecture, machine.device, **options)
        (micro_batch,) = batch.split(size.tokens, weights, policy.layout)

        def work(policy=policy, micro_batch=micro_batch) -> None:  # type: ignore[no-untyped-def]
            policy.zero_grad(set_to_none=True)
            (micro_batch.weight * policy(micro_batch)[0]).sum().backward()

        peaks.append(machine.peak_bytes(work) if machine.on_gpu else 0)
        work()
        found.append(
            torch.cat([each.grad.flatten() for each in policy.parameters() if each.grad is not None])
        )
    yield at_most("checkpointing: gradient from that without", apart(found[1], found[0]), 1e-4)
    if machine.on_gpu:
        yield at_most("checkpointing: peak memory / without", peaks[1] / peaks[0], 1.0, "x")


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


def liger(machine: Machine) -> Iterator[Finding]:
    """Liger's kernels against the model's own."""
    architecture = with_layers(SHAPES["Qwen2.5-0.5B"], 4)
    batch = random_batch(Size(1, 4, 64, 256), architecture["vocab_size"])
    rollouts = [sample.rollout for group in batch.groups for sample in group.samples]
    found = []
    for options in ({}, {"liger": True}):  # the model's own first: Liger changes its module for good
        policy = random_policy(architecture, machine.device, **options)
        with torch.no_grad():
            found.append(policy(model_input(rollouts, torch.device(machine.device), policy.layout))[0])
    yield at_most(
        "Liger's kernels: log-probs from the model's own",
        float((found[0] - found[1]).abs().mean()),
        1e-3,
        "nats",
    )


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


CHECKS = (
    Check(scores_accuracy),
    Check(scores_speed),
    Check(scores_and_liger, packages=("liger_kernel",), gpus=1),
    Check(packing),
    Check(checkpointing),
    Check(search),
    Check(liger, packages=("liger_kernel",), gpus=1),
    Check(deterministic),
)
