"""BAPO's search for the clipping bounds (Eq. 8, Algorithm 1), without the loop.

    tokens -- contribution_curves --> P(high), N(low)
                                           |  summed over micro-batches and ranks
    low, high <-- search_bounds -----------+

A positive token's contribution depends only on the upper bound and a negative token's only on the lower
bound, so two short curves hold all that Algorithm 1 needs. They are sums, so curves of micro-batches and
ranks add up, in one collective.

`contributions` and `positive_shares` read a token table, as BAPO balances it and as monitors show it.

Shapes: N tokens, L lower bounds, H upper bounds.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from bapo_lightning.objectives.token_table import TokenTable, reads

Kind = Literal["gradient", "surrogate"]
Order = Literal["upper_first", "lower_first"]
Measure = Literal["share", "ratio"]

# A grid includes its end if the last step misses it by less than this share of a step: (0.9 - 0.6) / 0.02 is
# not 15 in binary.
STEP_TOLERANCE = 1e-6


class BoundSearch(NamedTuple):
    """Result of a search for bounds (0-dim tensors)."""

    low: Tensor  # lower bound of the ratio
    high: Tensor  # upper bound of the ratio
    # positive contribution at these bounds, in the unit of the measure; NaN if there was nothing to balance
    value: Tensor
    met: Tensor  # bool: the target was reached, or there was nothing to balance


def bound_grid(start: float, end: float, step: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """Returns the values that a bound takes in Algorithm 1, 1-D ascending: start, start + step, ..., `end`.

    Raises:
        ValueError: `step` is not positive, or `end` is below `start`.
    """
    if not step > 0:
        raise ValueError(
            f"the step of a bound must be positive, got {step}; for a fixed bound let end equal start"
        )
    if not end >= start:
        raise ValueError(
            f"a bound moves upwards: its end must not be below its start, got start {start} and end {end}"
        )
    count = math.floor((end - start) / step + STEP_TOLERANCE) + 1
    return (start + step * torch.arange(count, dtype=torch.float64)).to(dtype)


@torch.no_grad()
def contribution_curves(
    ratio: Tensor,
    advantage: Tensor,
    mask: Tensor,
    weight: Tensor | None,
    lows: Tensor,
    highs: Tensor,
    kind: Kind = "gradient",
) -> tuple[Tensor, Tensor]:
    """Returns the contributions of positive tokens under each upper and of negatives under each lower bound.

    gradient (Eq. 5, a clipped token contributes nothing; a token exactly on its bound is alive):
        positive[h] = sum_{A>0, r<=high_h} w r A        negative[l] = sum_{A<0, r>=low_l} w r |A|
    surrogate (Eq. 8, a clipped token contributes its clipped value):
        positive[h] = sum_{A>0} w min(r, high_h) A      negative[l] = sum_{A<0} w max(r, low_l) |A|

    It passes over the tokens once, in O(N log(H + L)) comparisons, without a temporary [N, H] tensor and
    without waiting for the device.

    Args:
        ratio: r >= 0, any shape.
        advantage: A, same shape.
        mask: true for tokens that count, same shape; values of other tokens are never used, not even NaN.
        weight: w >= 0, same shape, or None for ones.
        lows: lower bounds, [L], ascending and non-negative (not checked: that would wait for the device).
        highs: upper bounds, [H], ascending and positive; infinity is allowed.
        kind: one of the two formulas.

    Returns:
        positive [H] and negative [L], float64, non-negative.

    Raises:
        ValueError: shapes do not fit, or the kind is unknown.
    """
    _check_choice("kind", kind, get_args(Kind))
    for name, tensor in (("advantage", advantage), ("mask", mask), ("weight", weight)):
        if tensor is not None and tensor.shape != ratio.shape:
            raise ValueError(
                f"{name} must have the shape of ratio, {list(ratio.shape)}, got {list(tensor.shape)}"
            )
    _check_grids(lows, highs)
    bins = _bin_index(ratio, advantage, mask, lows, highs)
    mass = advantage.to(torch.float64, copy=True)  # copy: it is overwritten below
    if weight is not None:
        mass.mul_(weight)
    if kind == "gradient":
        return _alive_sums(_sum_per_bin(bins, mass.mul_(ratio), lows, highs), lows, highs)
    dead_positive, dead_negative = _dead_sums(_sum_per_bin(bins, mass, lows, highs), lows, highs)
    positive, negative = _alive_sums(_sum_per_bin(bins, mass.mul_(ratio), lows, highs), lows, highs)
    # where: nothing is above an infinite bound, and infinity * 0 would be NaN
    clipped = torch.where(dead_positive > 0, highs * dead_positive, 0.0)
    return positive + clipped, negative + lows * dead_negative


def search_bounds(
    positive: Tensor,
    negative: Tensor,
    lows: Tensor,
    highs: Tensor,
    target: float | Tensor,
    order: Order = "upper_first",
    measure: Measure = "share",
) -> BoundSearch:
    """Returns the first point of Algorithm 1's path at which positives contribute `target`, or its end.

    All H + L - 1 points are compared at once, so the cost does not depend on the data and the host does not
    wait for the device.

    Args:
        positive: P, [H], from `contribution_curves`, summed over micro-batches and ranks.
        negative: N, [L], likewise.
        lows: [L] ascending.
        highs: [H] ascending.
        target: rho_0, in the unit of `measure`.
        order: the bound that moves first, as `_path` explains.
        measure: the unit of contributions, as `positive_contribution` explains.

    Returns:
        The chosen bounds in the dtype of the grids. If nothing contributes at the start (P = N = 0), there is
        nothing to balance: the start is kept, `met` is true and `value` is NaN (the share is undefined).
        A later 0/0 does not count as reached.

    Raises:
        ValueError: shapes do not fit, or the order or measure is unknown.
    """
    _check_choice("order", order, get_args(Order))
    _check_grids(lows, highs)
    if positive.shape != highs.shape or negative.shape != lows.shape:
        shapes = [list(tensor.shape) for tensor in (positive, highs, negative, lows)]
        raise ValueError(
            "positive needs the shape of highs, {1}, got {0}; negative that of lows, {3}, got {2}".format(
                *shapes
            )
        )
    low_index, high_index = _path(len(lows), len(highs), order, highs.device)
    path_positive, path_negative = positive[high_index], negative[low_index]
    value = positive_contribution(path_positive, path_negative, measure)
    reached = value >= target
    nothing = (path_positive[0] == 0) & (path_negative[0] == 0)
    met = reached.any() | nothing
    first = torch.where(nothing, 0, torch.where(met, reached.to(torch.uint8).argmax(), len(value) - 1))
    return BoundSearch(
        _at(lows, _at(low_index, first)), _at(highs, _at(high_index, first)), _at(value, first), met
    )


def _at(values: Tensor, index: Tensor) -> Tensor:
    # Not values[index]: indexing with a 0-dim tensor reads it back to the host.
    return values.index_select(0, index.view(1)).squeeze(0)


def _path(num_lows: int, num_highs: int, order: Order, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns grid indices (low, high) of the points that Algorithm 1 visits, each [H + L - 1].

    upper_first, the paper:
        (low_0, high_0) ... (low_0, high_end), (low_1, high_end) ... (low_end, high_end)
    lower_first, the authors' code:
        (low_0, high_0) ... (low_end, high_0), (low_end, high_1) ... (low_end, high_end)

    Algorithm 1 as printed also stops if only the upper bound could still move. The two differ only for a grid
    with one lower bound, which here means "low is fixed" and leaves the upper bound free.
    """
    steps = torch.arange(num_lows + num_highs - 1, device=device)
    low_index = (
        (steps - (num_highs - 1)).clamp_min(0) if order == "upper_first" else steps.clamp_max(num_lows - 1)
    )
    return low_index, steps - low_index


def positive_contribution(positive: Tensor, negative: Tensor, measure: Measure) -> Tensor:
    """Returns the positive contribution as a share or a ratio, elementwise.

    share: P / (P + N), in [0, 1] (the paper's figures). ratio: P / N, which is s / (1 - s) for a share s (the
    authors' code). Both are NaN if P = N = 0; the ratio is infinite if only N is 0.

    Raises:
        ValueError: the measure is unknown.
    """
    _check_choice("measure", measure, get_args(Measure))
    return positive / (positive + negative) if measure == "share" else positive / negative


def _bin_index(ratio: Tensor, advantage: Tensor, mask: Tensor, lows: Tensor, highs: Tensor) -> Tensor:
    """Returns the bin of each token, [N], from one search on the ascending axis sign(A) r.

    [0, L)       negatives by the largest low they reach, the largest first
    L            negatives below all lows
    (L, L + H]   positives by the smallest high that keeps them alive
    L + H + 1    positives above all highs
    L + H + 2    tokens that do not count
    """
    dtype = torch.promote_types(ratio.dtype, torch.promote_types(lows.dtype, highs.dtype))
    # Smallest normal number, so that a positive token with r = 0 does not fall among the negatives.
    key = ratio.reshape(-1).to(dtype).clamp_min(torch.finfo(dtype).tiny).copysign(advantage.reshape(-1))
    counted = (mask.bool() & (advantage != 0)).reshape(-1)
    key = torch.where(counted, key, torch.nan)  # NaN sorts behind the last bin
    grid = torch.cat([-lows.flip(0), lows.new_zeros(1), highs, highs.new_full((1,), torch.inf)]).to(dtype)
    return torch.searchsorted(grid, key)


def _sum_per_bin(bins: Tensor, values: Tensor, lows: Tensor, highs: Tensor) -> Tensor:
    """Returns one sum per bin, [L + H + 3]. bincount would wait for CUDA to find the largest bin."""
    return values.new_zeros(len(lows) + len(highs) + 3).scatter_add_(0, bins, values.reshape(-1))


def _alive_sums(area: Tensor, lows: Tensor, highs: Tensor) -> tuple[Tensor, Tensor]:
    """Returns sums of w r |A| over positives alive under each high, [H], and negatives at each low, [L]."""
    negatives, _, positives, _ = area.split([len(lows), 1, len(highs), 2])
    # abs, not neg: a sum of nothing must not become -0
    return positives.cumsum(0), negatives.cumsum(0).flip(0).abs()


def _dead_sums(mass: Tensor, lows: Tensor, highs: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the sums of w |A| over positives cut by each high, [H], and negatives cut by each low, [L]."""
    _, negatives, _, positives, _ = mass.split([1, len(lows), 1, len(highs), 1])
    return positives.flip(0).cumsum(0).flip(0), negatives.flip(0).cumsum(0).abs()


def _check_grids(lows: Tensor, highs: Tensor) -> None:
    for name, grid in (("lows", lows), ("highs", highs)):
        if grid.dim() != 1 or len(grid) == 0:
            raise ValueError(
                f"{name} must be an ascending 1-D grid of at least one bound, got shape {list(grid.shape)}"
            )


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


ContributionWeight = Literal["rollout_prob", "none"]


def contribution_weight(table: TokenTable, kind: ContributionWeight) -> Tensor:
    """Returns the weight of each token in the contributions of Eq. 8, shape [N].

    `rollout_prob` is the paper's pi_rollout(y_t); `none` is the authors' code. Both are multiplied by the
    token's share in the loss, so that they are contributions to the actual gradient, even under a sequence
    mean. Under a token mean this changes nothing.
    """
    return table.weight * table.behaviour_logp.exp() if kind == "rollout_prob" else table.weight


@reads("ratio", "advantage", "weight", "behaviour_logp", "origin")
def contributions(
    table: TokenTable, weight: ContributionWeight, lows: Tensor, highs: Tensor, kind: Kind = "gradient"
) -> tuple[Tensor, Tensor]:
    """Returns the contribution of all positive tokens under each upper bound, [H], and of all negative tokens
    under each lower bound, [L]; see `objectives.bounds.contribution_curves`.
    Tokens that were not sampled from the policy contribute nothing: their ratio compares no policies.
    """
    weights = contribution_weight(table, weight)
    return contribution_curves(table.ratio, table.advantage, table.is_sampled, weights, lows, highs, kind)


CUT_BY = ("ratio", "advantage", "weight", "behaviour_logp", "origin", "slope")  # columns


@reads(*CUT_BY)
def cut_contributions(
    table: TokenTable, kind: ContributionWeight, chosen: Tensor | bool = True
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Returns the contributions of positive and of all other tokens as the objective cuts them (Eq. 5), and
    without any clipping; 0-dim float64. Arguments: see `positive_shares`.
    """
    mass = contribution_weight(table, kind).double() * table.ratio * (table.is_sampled & chosen)
    is_positive = table.advantage > 0
    cut, whole = (
        ((parts * is_positive).sum(), (parts * ~is_positive).sum())
        for parts in (mass * table.slope.abs(), mass * table.advantage.abs())
    )
    return cut, whole


@reads(*CUT_BY)
def positive_shares(
    table: TokenTable, kind: ContributionWeight, chosen: Tensor | bool = True
) -> tuple[Tensor, Tensor]:
    """Returns the share of positive tokens in the contributions as the objective cuts them (Eq. 5), and
    without any clipping; 0-dim float64, NaN if nothing contributes.

    Args:
        table: minibatch, with the slopes of its update.
        kind: see `contribution_weight`.
        chosen: tokens that count, [N] bool.
    """
    cut, whole = (positive_contribution(*sides, "share") for sides in cut_contributions(table, kind, chosen))
    return cut, whole
