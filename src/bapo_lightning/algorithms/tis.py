"""REINFORCE on stale data, with truncated importance weights."""

from __future__ import annotations

from torch import Tensor

from bapo_lightning.objectives.corrections.tokens import Cap
from bapo_lightning.objectives.token_table import TokenTable


def tis(table: TokenTable, cap: Cap = 1.0) -> Tensor:
    """Returns sg(min(r, cap)) A log pi per token, [N]: no token loses its gradient, and none has a weight
    above `cap`.

    log r stands for log pi: they differ by a constant. ROLL uses a cap of 1 (`tis_upper_bound`); V-trace
    (arXiv 1802.01561) has the same weight. `correction=truncated_is` truncates another ratio, between trainer
    and engine, and leaves the objective unchanged.
    """
    return table.ratio.detach().clamp_max(cap) * table.advantage * table.log_ratio
