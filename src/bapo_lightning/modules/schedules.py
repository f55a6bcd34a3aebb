"""Learning-rate schedules, counted in optimizer updates."""

from __future__ import annotations

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def linear_warmup(optimizer: Optimizer, warmup_updates: int) -> LambdaLR:
    """Rise linearly to the optimizer's rate over `warmup_updates` updates, then stay: update u uses min(1, (u
    + 1) / warmup_updates).
    """
    return LambdaLR(optimizer, lambda update: min(1.0, (update + 1) / max(warmup_updates, 1)))
