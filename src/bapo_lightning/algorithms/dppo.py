"""DPPO: masks tokens whose probability, not their ratio, has moved too far (arXiv 2602.04879)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from bapo_lightning.objectives.corrections.tokens import Cap
from bapo_lightning.objectives.divergence import within_divergence
from bapo_lightning.objectives.token_table import TokenTable
from bapo_lightning.system.values import Positive


def dppo(
    table: TokenTable,
    divergence: Literal["tv", "kl"] = "tv",
    low: Positive = 0.15,
    high: Positive = 0.15,
    cap: Cap | None = 20.0,
) -> Tensor:
    """Returns sg(min(r, cap)) A log pi per token, [N], but 0 if A > 0 and the probability p has risen by a
    divergence of more than `high`, or if A < 0 and it has fallen by a divergence of more than `low`.

    log r stands for log pi: they differ by a constant. q is the probability under the proximal policy, and
    the divergence is between distributions over two outcomes, this token and any other (Eq. 13, 14):

    tv  |p - q|
    kl  q log(q / p) + (1 - q) log((1 - q) / (1 - p))

    The thresholds are from verl's script, 0.15 for tv and 0.05 for kl, and the cap from the paper. verl
    reads the cap from its dual clip, which is 3 unless set, and sets 10000; SkyRL has r A, which has
    the same gradient as `cap: null`. The authors' code takes q from the engine (`dppo_binary_tv`) or from the
    trainer's own log-probs (`..._recompute`), which here is the choice of `correction`.
    """
    kept = within_divergence(table, low, high, divergence)
    weight = table.ratio.detach().clamp_max(torch.inf if cap is None else cap)
    return torch.where(kept, weight, 0.0) * table.advantage * table.log_ratio
