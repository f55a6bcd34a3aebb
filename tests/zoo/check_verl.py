"""Calls the losses of examples/verl_policy_loss.py as verl's own worker does, beside an update of
`reference.py` and verl's own clipped loss, in verl's environment; `make check-verl`.

    .venv-verl/bin/python tests/zoo/check_verl.py

`verl.workers.utils.losses.ppo_loss` looks the loss up by its name, tells it the sizes of the minibatch and
passes nested tensors, once for each micro-batch. No engine of verl runs, which needs a GPU.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))
os.environ["VERL_USE_EXTERNAL_MODULES"] = "verl_policy_loss"  # how verl gets it
import verl  # noqa: E402
from tensordict import TensorDict  # noqa: E402
from torch import Tensor  # noqa: E402
from verl.workers.config import ActorConfig  # noqa: E402
from verl.workers.config.actor import PolicyLossConfig  # noqa: E402
from verl.workers.utils.losses import ppo_loss  # noqa: E402

from bapo_lightning import reference  # noqa: E402
from bapo_lightning.objectives.surrogate import clipped_surrogate  # noqa: E402
from bapo_lightning.objectives.token_table import TokenTable, table_of  # noqa: E402
from bapo_lightning.objectives.weighting import token_mean  # noqa: E402

LIMIT, TARGET, UPDATES = 1e-6, 0.4, 20
B, T, PROMPT = 16, 12, 3


def update(seed: int) -> dict[str, Tensor]:
    """Random tokens of a minibatch, [B, T], whose ratios are on both sides of all bounds."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, T + 1, (B,), generator=draw)
    lengths[0] = T
    old = -3 * torch.rand(B, T, generator=draw)
    logp = (old + 0.4 * torch.randn(B, T, generator=draw)).clamp_max(0)
    advantages = torch.randn(B, 1, generator=draw) - 0.3
    return {
        "mask": torch.arange(T) < lengths[:, None], "logp": logp, "old": old,
        "advantages": advantages.expand(B, T),
    }  # fmt: skip


def by_verl(loss_mode: str, given: dict[str, Tensor], rows: slice, **options: Any) -> tuple[Tensor, Any]:
    """Gradient in the log-probs of a micro-batch, [b, T], and the numbers that verl logs."""
    mask = given["mask"]
    part = {name: values[rows] for name, values in given.items()}
    lengths = part["mask"].sum(1).tolist()
    leaf = part["logp"].clone().requires_grad_()

    def nested(values: Tensor, before: int = 0) -> Tensor:
        kept = [row[:length] for row, length in zip(values, lengths, strict=True)]
        return torch.nested.as_nested_tensor(
            [torch.nn.functional.pad(row, (before, 0)) for row in kept], layout=torch.jagged
        )

    data = {"response_mask": part["mask"], "old_log_probs": part["old"], "advantages": part["advantages"]}
    columns = {name: nested(values) for name, values in data.items()}
    ones = torch.ones(len(lengths), T, dtype=torch.long)
    columns |= {"responses": nested(ones), "prompts": torch.nested.as_nested_tensor(
        [torch.ones(PROMPT, dtype=torch.long) for _ in lengths], layout=torch.jagged)}  # fmt: skip
    batch = TensorDict(columns, batch_size=[len(lengths)])
    for name, value in {"dp_size": 1, "batch_num_tokens": int(mask.sum()), "global_batch_size": B}.items():
        batch.set_non_tensor(name, value)
    config = ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1,
        policy_loss=PolicyLossConfig(loss_mode=loss_mode), **options,
    )  # fmt: skip
    # verl's model scores each token at the place of the one before it.
    scored = [torch.nn.functional.pad(row[:n], (PROMPT - 1, 1)) for row, n in zip(leaf, lengths, strict=True)]
    output = {"log_probs": torch.nested.as_nested_tensor(scored, layout=torch.jagged)}
    loss, metrics = ppo_loss(config, output, batch)
    loss.backward()
    assert leaf.grad is not None
    return leaf.grad, metrics


def table(given: dict[str, Tensor], leaf: Tensor) -> TokenTable:
    """Token table of the whole minibatch."""
    mask = given["mask"]
    rows = torch.arange(B)[:, None].expand(B, T)[mask]
    weight = token_mean(mask, float(mask.sum()))[mask]
    known = dict.fromkeys(("age", "sequence", "group", "position"), rows)
    known |= {"advantage": given["advantages"][mask], "entropy": weight, "count": torch.ones_like(weight)}
    return table_of(leaf[mask], given["old"][mask], weight=weight, **known)


def by_reference(given: dict[str, Tensor]) -> tuple[Tensor, float, float]:
    """Gradient of the minibatch in its log-probs, [B, T], and its bounds."""
    leaf = given["logp"].clone().requires_grad_()
    tokens = table(given, leaf)
    bounds = reference.search(reference.Settings(target=TARGET), [tokens.detach()])
    objective = clipped_surrogate(tokens.ratio, tokens.advantage, bounds.low, bounds.high)
    (gradient,) = torch.autograd.grad(-(tokens.weight * objective).sum(), leaf)
    return gradient, float(bounds.low), float(bounds.high)


def gap(found: Tensor, expected: Tensor) -> float:
    """Largest difference relative to the largest number."""
    return float((found - expected).abs().max() / expected.abs().max())


def main() -> int:
    """Prints what was compared; returns 1 if it is not as it should be."""
    whole, halves = slice(0, B), (slice(0, B // 2), slice(B // 2, B))
    same, bapo, dapo, split, pairs = 0, 0.0, 0.0, 0, set()
    for seed in range(UPDATES):
        given = update(seed)
        expected, low, high = by_reference(given)
        found, metrics = by_verl("bapo_lightning/bapo", given, whole)
        logged = tuple(float(metrics[f"actor/clip_{side}"].aggregate()) for side in ("low", "high"))
        same += logged == (low, high)
        pairs.add(logged)
        bapo = max(bapo, gap(found, expected))
        parts = [by_verl("bapo_lightning/bapo", given, rows)[1]["actor/clip_high"] for rows in halves]
        split += any(float(part.aggregate()) != high for part in parts)
        ours = torch.cat([by_verl("bapo_lightning/dapo", given, rows)[0] for rows in halves])
        clip = {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0}
        theirs = torch.cat([by_verl("vanilla", given, rows, **clip)[0] for rows in halves])
        dapo = max(dapo, gap(ours, theirs))
    print(
        f"verl {verl.__version__}, one micro-batch: BAPO's bounds equal in {same} of {UPDATES} updates "
        f"({len(pairs)} different pairs), gradients within {bapo:.0e}\n"
        f"verl's own clipped loss at DAPO's bounds, two micro-batches: gradients within {dapo:.0e}\n"
        f"two micro-batches: another bound than that of the update in {split} of {UPDATES} updates"
    )
    return int(same < UPDATES or max(bapo, dapo) > LIMIT or len(pairs) < 3)


if __name__ == "__main__":
    sys.exit(main())
