"""Time and peak memory of fused log-probs and entropies (`modules/token_scores.py`) and of the naive version.

    python bench/token_scores.py                  2048 tokens, a minute or two, 4 GB
    python bench/token_scores.py --tokens 8192    the full size, ten minutes or more, 15 GB for the naive one
    python bench/token_scores.py --mixed          both as mixed precision computes them: the naive one by
                                                  autocast, with products in bfloat16

Each measurement is a process of its own that makes the inputs and computes once; rounds go in turns. The
naive version is a fair opponent: it frees what it no longer needs, and its entropy has no graph.
"""

from __future__ import annotations

import argparse
import json
import os
from functools import partial
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in the main job; read when torch loads

import torch
from measuring import Spread, apart, bench_parser, with_peak, write_json
from torch import Tensor

from bapo_lightning.modules.token_scores import token_scores

VARIANTS = ("naive", "fused")
PASSES = ("forward", "backward")  # "backward" includes the forward pass
TARGETS = {"wall": 1.15, "bytes": 0.1}  # fused / naive, at the full size
Found = dict[str, list[dict[str, Any]]]


def mixed_scores(variant: str, *given: Tensor) -> tuple[Tensor, Tensor]:
    """Computes them in mixed precision; gradients are made as the passes before them were."""
    if variant == "fused":
        return token_scores(*given, half_factors=True)
    with torch.autocast("cpu", torch.bfloat16):
        return naive_scores(*given)


def naive_scores(hidden: Tensor, head_weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    log_probs = torch.log_softmax(hidden @ head_weight.T, dim=-1, dtype=torch.float32)
    with torch.no_grad():
        entropy = -log_probs.exp().mul_(log_probs).sum(-1)
    return log_probs.gather(1, targets[:, None]).squeeze(1), entropy


def measure(variant: str, passes: str, given: argparse.Namespace) -> dict[str, float]:
    torch.set_num_threads(given.threads)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(given.tokens, given.width, generator=generator)
    head_weight = torch.randn(given.vocabulary, given.width, generator=generator).mul_(given.width**-0.5)
    targets = torch.randint(given.vocabulary, (given.tokens,), generator=generator)
    scores = {"naive": naive_scores, "fused": token_scores}[variant]
    if given.mixed:
        scores = partial(mixed_scores, variant)
    for tensor in (hidden, head_weight):
        tensor.requires_grad_(passes == "backward")
    ones = torch.ones(64, 64)
    (ones @ ones).exp().sum().item()  # loads libraries before the clock starts
    check: list[float] = []

    def work() -> None:
        logp, entropy = scores(hidden, head_weight, targets)
        check.append((logp.detach().mean() + entropy.mean()).item())
        if passes == "backward":
            logp.sum().backward()

    taken, peak = with_peak(work)
    return {"wall": taken.wall, "cpu": taken.cpu, "bytes": peak, "check": check[0]}


def report(passes: str, timings: Found) -> dict[str, Any]:
    spreads = {
        variant: {key: Spread.of([one[key] for one in rounds]) for key in ("wall", "cpu", "bytes")}
        for variant, rounds in timings.items()
    }
    title = "forward" if passes == "forward" else "forward and backward"
    for variant, spread in spreads.items():
        times = f"wall {spread['wall'].text('s')}  cpu {spread['cpu'].text('s')}"
        print(f"{title:<22}{variant:<7}{times}  peak {spread['bytes'].median / 1e9:.2f} GB")
    ratios = {
        key: spreads["fused"][key].median / spreads["naive"][key].median for key in ("wall", "cpu", "bytes")
    }
    shown = f"wall {ratios['wall']:.2f}x  cpu {ratios['cpu']:.2f}x  peak {ratios['bytes']:.3f}x"
    print(
        f"{title:<22}{'ratio':<7}{shown}  (targets at 8192 tokens: time {TARGETS['wall']}x, peak "
        f"{TARGETS['bytes']}x)",
        flush=True,
    )
    assert abs(timings["fused"][0]["check"] - timings["naive"][0]["check"]) < 1e-3, "the two do not agree"
    return {"rounds": timings, "ratios": ratios}


def main() -> None:
    parser = bench_parser(__doc__, tokens=2048, width=1024, vocabulary=152000, threads=2, rounds=3)
    parser.add_argument("--mixed", action="store_true", help="mixed precision instead of float32")
    parser.add_argument("--passes", choices=PASSES, nargs="*", default=PASSES)
    parser.add_argument("--measure", nargs=2, metavar=("VARIANT", "PASSES"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(*given.measure, given)))
        return
    sizes = {name: getattr(given, name) for name in ("tokens", "width", "vocabulary", "threads")}
    precision = "mixed precision" if given.mixed else "float32"
    print(f"{', '.join(f'{value} {name}' for name, value in sizes.items())}, {precision}")
    print(
        f"method: a fresh process each, {given.rounds} rounds in turns after a small product; median (least "
        ".. most)"
    )
    record: dict[str, Any] = {"sizes": sizes, "precision": precision}
    for passes in given.passes:
        timings: Found = {variant: [] for variant in VARIANTS}
        for _ in range(given.rounds):
            for variant in VARIANTS:
                options = [f"--{name}={value}" for name, value in sizes.items()]
                options += ["--mixed"] if given.mixed else []
                timings[variant].append(apart(__file__, [*options, "--measure", variant, passes]))
        record[passes] = report(passes, timings)
    write_json(given.json, record)


if __name__ == "__main__":
    main()
