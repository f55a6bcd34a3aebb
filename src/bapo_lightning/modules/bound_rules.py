"""Where an update's clipping bounds come from: fixed numbers, or the search of Algorithm 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

import torch
from torch import Tensor, nn

from bapo_lightning.data.batches.batch import MicroBatch
from bapo_lightning.modules.token_table import TokenTable
from bapo_lightning.objectives.bounds import BoundSearch, bound_grid, contribution_curves, search_bounds
from bapo_lightning.ranks.collectives import sum_over_ranks

ContributionWeight = Literal["rollout_prob", "none"]


class BoundRange(TypedDict):
    """Where a searched bound starts and ends, and how far each step moves it."""

    start: float
    end: float
    step: float


def contribution_weight(table: TokenTable, kind: ContributionWeight) -> Tensor:
    """Weight of each token in the contributions of Eq. 8, shape [N].

    `rollout_prob` is the paper's pi_rollout(y_t); `none` the authors' code. Either is multiplied by the
    token's share in the loss, so that contributions are those to the gradient really taken, also under a
    sequence mean (under a token mean this changes nothing).
    """
    return table.weight * table.behaviour_logp.exp() if kind == "rollout_prob" else table.weight


class FixedBounds(nn.Module):
    """The same bounds for every update, as in PPO, GRPO and DAPO."""

    searches = False
    low: Tensor
    high: Tensor

    def __init__(self, low: float, high: float) -> None:
        """Bounds are ratios, for example 0.8 and 1.2, not distances from 1."""
        super().__init__()
        self.register_buffer("low", torch.tensor(low), persistent=False)
        self.register_buffer("high", torch.tensor(high), persistent=False)

    def scopes(self, micro_batches: Sequence[MicroBatch]) -> list[Sequence[MicroBatch]]:
        """All micro-batches share the bounds."""
        return [micro_batches]

    def choose(self, tables: Sequence[TokenTable]) -> BoundSearch:
        """The fixed bounds; there is no target to miss."""
        return BoundSearch(
            self.low,
            self.high,
            torch.full_like(self.low, float("nan")),
            torch.ones_like(self.low, dtype=torch.bool),
        )


class AdaptiveBounds(nn.Module):
    """BAPO: for every update, the first bounds on Algorithm 1's path at which positives contribute at least
    the target.
    """

    searches = True
    lows: Tensor
    highs: Tensor

    def __init__(
        self,
        low: BoundRange,
        high: BoundRange,
        target: float,
        kind: Literal["gradient", "surrogate"],
        order: Literal["upper_first", "lower_first"],
        measure: Literal["share", "ratio"],
        weight: ContributionWeight,
        scope: Literal["minibatch", "microbatch"],
    ) -> None:
        """
        Args:
            low: start (a-), end (b-) and step (delta_2) of the lower bound.
            high: start (a+), end (b+) and step (delta_1) of the upper bound.
            target: rho_0, in the unit of `measure`.
            kind: what a clipped token contributes, see `objectives.bounds.contribution_curves`.
            order: which bound is moved first.
            measure: positives / all, or positives / negatives.
            weight: see `contribution_weight`.
            scope: one search for the whole minibatch of an update, or one per micro-batch as in the authors'
                code.
        """
        super().__init__()
        self.register_buffer("lows", bound_grid(low["start"], low["end"], low["step"]), persistent=False)
        self.register_buffer("highs", bound_grid(high["start"], high["end"], high["step"]), persistent=False)
        self.target = target
        self.kind = kind
        self.order = order
        self.measure = measure
        self.weight = weight
        self.scope = scope

    def scopes(self, micro_batches: Sequence[MicroBatch]) -> list[Sequence[MicroBatch]]:
        """Groups of micro-batches that share one search."""
        return (
            [micro_batches] if self.scope == "minibatch" else [[micro_batch] for micro_batch in micro_batches]
        )

    @torch.no_grad()
    def choose(self, tables: Sequence[TokenTable]) -> BoundSearch:
        """Search over the tokens of `tables` on all ranks: one pass over the tokens, one collective, no host
        synchronisation.
        """
        curves = sum_over_ranks(torch.stack([self._curves(table) for table in tables]).sum(0))
        positive, negative = curves.split([len(self.highs), len(self.lows)])
        return search_bounds(positive, negative, self.lows, self.highs, self.target, self.order, self.measure)

    def _curves(self, table: TokenTable) -> Tensor:
        weight = contribution_weight(table, self.weight)
        mask = torch.ones_like(table.advantage, dtype=torch.bool)
        return torch.cat(
            contribution_curves(table.ratio, table.advantage, mask, weight, self.lows, self.highs, self.kind)
        )
