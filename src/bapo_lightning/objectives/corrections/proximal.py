"""Choices of pi_proximal, the denominator of ratios, that need no pass through the model."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from bapo_lightning.objectives.token_table import TokenTable


def behaviour(table: TokenTable) -> Tensor:
    """Returns log pi_behaviour, [N]: ratios are to the policy that sampled, as without a correction."""
    return table.behaviour_logp


def current(table: TokenTable) -> Tensor:
    """Returns log pi, [N]: every ratio is 1, with its gradient, and a correction's gap is the whole
    importance ratio pi / pi_behaviour. The objective is then REINFORCE, whatever its bounds.
    """
    return table.logp.detach()


def log_linear(table: TokenTable, version: Literal["entry", "previous"] = "entry") -> Tensor:
    """Returns (1 - a) log pi_behaviour + a log pi, [N], as the log-probs of a policy between both: A-3PO
    (arXiv 2512.06547).

    a = (v_proximal - v_behaviour) / (v - v_behaviour), limited to [0, 1], and 0 for a token of age 0; v
    counts updates. Each token has its own a, by the version that sampled it. The ratio is then
    (pi / pi_behaviour)^(1 - a), and the gap (pi / pi_behaviour)^a.

    Args:
        table: [N] tokens.
        version: v_proximal is the trainer's version at the "entry" of the batch into training, as after
            recomputing, or the "previous" version, v - 1, as in the paper and in AReaL.
    """
    age = table.age.to(table.logp.dtype)
    gap = age - 1 if version == "previous" else table.age_at_entry.to(age.dtype)
    share = torch.where(age > 0, gap / age.clamp_min(1), 0.0).clamp(0, 1)
    return torch.lerp(table.behaviour_logp, table.logp.detach(), share)
