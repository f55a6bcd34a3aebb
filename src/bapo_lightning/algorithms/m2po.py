"""M2PO: limits an update by the second moment of log r (arXiv 2510.01161, Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bapo_lightning.objectives.surrogate import clipped_surrogate
from bapo_lightning.objectives.token_table import TokenTable, reads
from bapo_lightning.system.values import Positive

Reading = Literal["clamp", "mask"]
LIMIT = "limit"


def largest_log_ratio(table: TokenTable, budget: Positive = 0.04, reading: Reading = "clamp") -> Tensor:
    """Returns the |log r| at which tokens of the update are cut, 0-dim; infinite if the budget, M in the
    paper, suffices.

    Only tokens that move away count: r > 1 with A > 0, and r < 1 with A < 0. The limit is exact, by sorting.

    clamp: the mean of min((log r)^2, limit^2) over these tokens is the budget. The authors' code takes the
        next lower (log r)^2 among the tokens instead, which differs by less than one token.
    mask: as many of these tokens as possible are below the limit, in order of |log r|, while the mean of
        their (log r)^2 is at most the budget. The limit is halfway to the next; equal tokens stay together.

    AReaL masks too, but searches each micro-batch separately, so that the result depends on the split, and
    over (log pi_proximal - log pi_behaviour)^2 of all tokens instead of tokens that move away.
    """
    square, order = table.log_ratio.double().square().sort()
    weight = (table.count * (table.log_ratio * table.advantage > 0)).double().gather(0, order)
    number, total = weight.cumsum(0), (weight * square).cumsum(0)
    if reading == "mask":
        beyond = total > budget * number
        first = torch.where(beyond, square, torch.inf).min()
        last = torch.where((weight > 0) & (square < first), square, 0.0).max()
        return ((first.sqrt() + last.sqrt()) / 2).to(table.log_ratio.dtype)
    # Tokens fit as long as a limit at their own (log r)^2 keeps the capped sum within the budget.
    fits = total + (number[-1] - number) * square <= budget * number[-1]
    capped, known = (torch.where(fits, sums, 0.0).max() for sums in (number, total))
    limit = (budget * number[-1] - known) / (number[-1] - capped)
    return torch.where(capped < number[-1], limit, torch.inf).sqrt().to(table.log_ratio.dtype)


@dataclass(frozen=True)
class M2PO:
    """M2PO's objective in one of two readings.

    clamp (the authors' code): PPO-clip within [exp(-limit), exp(limit)]. Their function takes a floor of
        [0.7, 1.5] for these bounds, which its only caller switches off, as do all the authors' scripts.
    mask (Algorithm 1 of the final paper; ms-swift and Trinity-RFT): r A, without the tokens that move away
        and are beyond the limit. The mean still counts all tokens.
    """

    budget: Positive = 0.04
    reading: Reading = "clamp"

    @reads("log_ratio", "advantage", "count")
    def prepare(self, table: TokenTable) -> dict[str, Tensor]:
        """Returns the limit of the update."""
        return {LIMIT: largest_log_ratio(table, self.budget, self.reading)}

    def __call__(self, table: TokenTable) -> Tensor:
        """Returns the objective of each token, [N]."""
        limit = table[LIMIT]
        if self.reading == "mask":
            outside = (table.log_ratio * table.advantage > 0) & (table.log_ratio.abs() > limit)
            return torch.where(outside, 0.0, table.ratio * table.advantage)
        return clipped_surrogate(table.ratio, table.advantage, (-limit).exp(), limit.exp())
