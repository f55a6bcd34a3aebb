"""Learning-rate schedules, counted in optimizer updates."""

from __future__ import annotations

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from bapo_lightning.values import CountOrZero


def linear_warmup(optimizer: Optimizer, warmup_updates: CountOrZero) -> LambdaLR:
    """Returns a schedule that rises linearly to the optimizer's rate over `warmup_updates` updates.

    Update u uses the share min(1, (u + 1) / warmup_updates) of the rate; the rate stays from then on.
    """
    return LambdaLR(optimizer, lambda update: min(1.0, (update + 1) / max(warmup_updates, 1)))
