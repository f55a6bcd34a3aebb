"""One run on 1, 2 and 4 ranks: the same bounds, losses, gradient norms and weights? `make bench
ARGS="--only ranks"`, on a CPU.

10 updates of the tiny world, on 2 rollout batches, with several micro-batches each.
Every case is `cli.train` in its own processes, compared with one process: the largest relative differences
over all updates, and of the weights at the end. A case with an arrow stops after 5 updates of the left side
and continues from that checkpoint with the right side.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import run_comparison
import torch
from measuring import bench_parser

from bapo_lightning.callbacks.run_checkpoint import DirectCheckpointIO
from bapo_lightning.system.run_folder.record import read_rows

VARIANTS = {
    "single": ["strategy=single"],
    **{f"ddp {size}": ["strategy=ddp", f"trainer.devices={size}"] for size in (1, 2, 4)},
    **{f"fsdp {size}": ["strategy=fsdp", f"trainer.devices={size}"] for size in (1, 2, 4)},
}
VARIANTS["fsdp 2 file"] = [*VARIANTS["fsdp 2"], "strategy.sharded_checkpoints=false"]
CASES = [
    *(f"{name} {size}" for name in ("ddp", "fsdp") for size in (1, 2, 4)),
    *(f"ddp 2 -> {variant}" for variant in ("single", "ddp 2", "ddp 4", "fsdp 2")),
    *(f"fsdp 2 -> {variant}" for variant in ("single", "fsdp 1", "fsdp 2", "fsdp 4")),
    *(f"fsdp 2 file -> {variant}" for variant in ("single", "ddp 2", "fsdp 4")),
]
RUN = [
    *("trainer.accelerator=cpu", "trainer.precision=32-true", "callbacks.checkpoint.every=5"),
    *("callbacks.validation.every=5", "scale.validation_problems=3", "callbacks.console.every=5"),
    *("scale.prompts_per_batch=10", "scale.group_size=4", "scale.micro_batch_tokens=256"),
    *("regime.epochs=1", "regime.minibatches=5"),
]
METRICS = {
    "bounds": ("bapo/clip_low", "bapo/clip_high"),
    "loss": ("train/loss",),
    "gradient norm": ("train/grad_norm",),
    "entropy": ("policy/entropy",),
    "reward": ("train/reward",),
    "held out": ("val/additions/response_length", "val/sums/response_length"),
}


def train(folder: Path, variant: str, num_batches: int, changes: Sequence[str], resume: bool = False) -> None:
    is_named = any(text.startswith("experiment=") for text in changes)
    experiment = [] if is_named else ["experiment=additions"]
    sizes = [f"scale.num_rollout_batches={num_batches}", *["resume=auto"] * resume]
    options = [*RUN, *experiment, *changes, *VARIANTS[variant], *sizes]
    run_comparison.train(folder, options, OMP_NUM_THREADS="1")


def run_case(folder: Path, case: str, changes: Sequence[str]) -> None:
    first, arrow, then = case.partition(" -> ")
    train(folder, first, 1 if arrow else 2, changes)
    if arrow:
        train(folder, then, 2, changes, resume=True)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    path = folder / "checkpoints" / "update000010" / "trainer.ckpt"
    return DirectCheckpointIO().load_checkpoint(path, map_location="cpu")["state_dict"]


def differences(reference: Path, folder: Path) -> dict[str, float]:
    """Returns the largest relative differences. Each metric is relative to its largest value, because single
    losses may be close to zero.
    """
    expected, rows = read_rows(reference), read_rows(folder)
    if len(expected) != 10 or len(rows) != 10:
        raise RuntimeError(f"expected 10 updates, got {len(expected)} and {len(rows)}")
    result = {}
    for title, names in METRICS.items():
        measured = [
            (row[name], other[name])
            for row, other in zip(expected, rows, strict=True)
            for name in names
            if name in row
        ]
        scale = max(abs(value) for value, _ in measured)
        gaps = [abs(value - other) for value, other in measured]
        result[title] = max(gaps) / scale
    one, other = weights_of(reference), weights_of(folder)
    norm = torch.linalg.vector_norm(
        torch.stack([torch.linalg.vector_norm(weight) for weight in one.values()])
    )
    gap = torch.linalg.vector_norm(
        torch.stack([torch.linalg.vector_norm(other[name] - weight) for name, weight in one.items()])
    )
    result["weights"] = float(gap / norm)
    result["texts"] = float(
        (reference / "rollouts.jsonl").read_text() != (folder / "rollouts.jsonl").read_text()
    )
    return result


def main() -> int:
    parser = bench_parser(__doc__, has_json=False)
    parser.add_argument("--cases", nargs="+", default=CASES, help=f"any of: {'; '.join(CASES)}")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="of all runs")
    arguments = parser.parse_args()
    # Kernels of a GPU add up in another order for other shapes, and then texts part.
    most, most_of_weights = (
        (float("inf"), 1e-3) if "trainer.accelerator=gpu" in arguments.set else (1e-4, 1e-6)
    )
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        reference = Path(temporary, "reference")
        train(reference, "single", 2, arguments.set)
        for case in arguments.cases:
            folder = Path(temporary, case.replace(" ", "_").replace(">", ""))
            run_case(folder, case, arguments.set)
            largest = differences(reference, folder)
            good = largest["weights"] <= most_of_weights and max(largest.values()) <= most
            failed += not good
            print(
                f"{case:24}"
                + "  ".join(f"{name} {value:.0e}" for name, value in largest.items())
                + ("" if good else "  DIFFERENT"),
                flush=True,
            )
    print("differences are relative to one process; texts 0: all recorded texts are equal")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
