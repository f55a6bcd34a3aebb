"""Forward and backward passes of one update over responses of very different lengths: padded, packed, and
packed with checkpointing.

    python bench/packing.py    a small random model on the CPU
    python bench/packing.py --device cuda --dtype bfloat16 --attention flash_attention_2 --layers 28
        --width 1536 --budget 32768

Samples come in groups that share a prompt. Lengths are log-normal like those of reasoning models: most are
short, few are very long. All variants score the same tokens with the same weights, and their losses are
compared. Each measurement is a process of its own; rounds go in turns. Memory is the peak of the process (on
a GPU: of the allocator) above weights and gradients.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from array import array
from typing import Any

import numpy as np
import torch
from measuring import Spread, Turn, apart, bench_parser, turn, with_peak, write_json
from transformers import Qwen2Config

from bapo_lightning.data.batches.batch import TrainBatch, collate
from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.options import ModelOptions
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.types import FinishReason, Group, Problem, Rollout, Sample, Score, ScoreStatus, Segment

VARIANTS = {
    "padded": {"packing": "none"},
    "packed": {"packing": "padding_free"},
    "packed, checkpointed": {"packing": "padding_free", "activation_checkpointing": True},
}


def minibatch(given: argparse.Namespace) -> TrainBatch:
    generator = np.random.default_rng(0)
    lengths = (
        generator.lognormal(np.log(given.median_length), 0.8, given.samples)
        .astype(int)
        .clip(1, given.longest)
    )
    samples = []
    prompt: array[int] = array("i")
    for number, length in enumerate(lengths.tolist()):
        if number % given.group_size == 0:
            prompt = array("i", generator.integers(0, given.vocabulary, given.prompt).tolist())
        segment = Segment(
            array("i", generator.integers(0, given.vocabulary, length).tolist()),
            array("f", [-1.0] * length),
            0,
        )
        rollout = Rollout(prompt, (segment,), FinishReason.STOP)
        samples.append(Sample(rollout, "", Score(1.0, ScoreStatus.CORRECT), 1.0))
    return collate([Group(Problem("p", "", ""), tuple(samples), (1.0,) * len(samples))], {})


def random_policy(variant: str, given: argparse.Namespace) -> Policy:
    config = Qwen2Config(
        vocab_size=given.vocabulary,
        hidden_size=given.width,
        intermediate_size=4 * given.width,
        num_hidden_layers=given.layers,
        num_attention_heads=given.width // 64,
        num_key_value_heads=max(given.width // 256, 1),
        tie_word_embeddings=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        options = ModelOptions(folder, dtype=given.dtype, attention=given.attention, **VARIANTS[variant])
        policy = build_policy(options, 1.0, on_meta=True)
    policy.to_empty(device=given.device)
    torch.manual_seed(0)
    policy.model.init_weights()
    policy.model.model.rotary_emb = type(policy.model.model.rotary_emb)(policy.model.config).to(given.device)
    return policy


def measure(variant: str, given: argparse.Namespace) -> dict[str, float]:
    torch.set_num_threads(given.threads)
    batch, policy = minibatch(given), random_policy(variant, given)
    on_gpu = given.device != "cpu"
    batch = batch.to(given.device)
    for parameter in policy.parameters():
        parameter.grad = torch.zeros_like(parameter)
    losses: list[float] = []

    def work() -> None:
        for micro_batch in batch.split(given.budget, batch.response_mask / batch.num_tokens, policy.layout):
            logp, _ = policy(micro_batch)
            loss = -(micro_batch.weight * logp).sum()
            loss.backward()
            losses.append(loss.item())

    if on_gpu:  # kernels are compiled and chosen before the clock starts
        work()
        losses.clear()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        taken: Turn = turn(work)
        peak = torch.cuda.max_memory_allocated() - before
    else:
        taken, peak = with_peak(work)
    tokens = sum(batch.context_lengths) + sum(batch.response_lengths)
    counts = {"tokens": tokens, "micro_batches": len(losses)}
    return {**vars(taken), "bytes": peak, "loss": sum(losses), **counts}


def report(timings: dict[str, list[dict[str, Any]]]) -> None:
    padded = Spread.of([one["wall"] for one in timings["padded"]]).median
    for variant, rounds in timings.items():
        wall, cpu = (Spread.of([one[key] for one in rounds]) for key in ("wall", "cpu"))
        first = rounds[0]
        print(
            f"{variant:<22}{first['micro_batches']:>3} micro-batches  wall {wall.text('s')}  "
            f"cpu {cpu.text('s')}  {first['tokens'] / wall.median:7,.0f} tokens/s "
            f"({padded / wall.median:.2f}x)  peak "
            f"{first['bytes'] / 1e9:.2f} GB  loss {first['loss']:.6f}"
        )
    losses = [rounds[0]["loss"] for rounds in timings.values()]
    assert max(losses) - min(losses) < 1e-2, "the variants do not agree"


def main() -> None:
    sizes = {"samples": 48, "group_size": 8, "prompt": 64, "median_length": 200, "longest": 1500}
    sizes |= {"budget": 4096, "vocabulary": 8192, "layers": 4, "width": 256}
    parser = bench_parser(__doc__, **sizes, threads=2, rounds=3)
    for name, text in {"device": "cpu", "dtype": "float32", "attention": "sdpa"}.items():
        parser.add_argument(f"--{name}", default=text)
    parser.add_argument("--measure", choices=VARIANTS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(given.measure, given)))
        return
    used = {name: getattr(given, name) for name in [*sizes, "threads", "device", "dtype", "attention"]}
    print(
        ", ".join(f"{name} {value}" for name, value in used.items())
        + f"; {given.rounds} rounds in turns; median (least .. most)"
    )
    options = [f"--{name.replace('_', '-')}={value}" for name, value in used.items()]
    timings: dict[str, list[dict[str, Any]]] = {variant: [] for variant in VARIANTS}
    for _ in range(given.rounds):
        for variant in VARIANTS:
            timings[variant].append(apart(__file__, [*options, "--measure", variant]))
    report(timings)
    write_json(given.json, {"options": used, "rounds": timings})


if __name__ == "__main__":
    main()
