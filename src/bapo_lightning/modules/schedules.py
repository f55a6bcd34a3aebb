"""Learning-rate schedules, counted in optimizer updates."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from bapo_lightning.system.values import CountOrZero


def linear_warmup(optimizer: Optimizer, warmup_updates: CountOrZero) -> LambdaLR:
    """Returns a schedule that rises linearly to the optimizer's rate over `warmup_updates` updates.

    Update u uses the share min(1, (u + 1) / warmup_updates) of the rate; the rate stays from then on.
    """
    return LambdaLR(optimizer, lambda update: min(1.0, (update + 1) / max(warmup_updates, 1)))


def step_scaled(optimizer: Any, scale: float) -> float:
    """Steps with all learning rates times `scale`, and returns the first rate that was used. The optimizer
    then has its old rates again, from which a schedule continues.
    """
    rates = [group["lr"] for group in optimizer.param_groups]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate * scale
    used: float = optimizer.param_groups[0]["lr"]
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    return used
