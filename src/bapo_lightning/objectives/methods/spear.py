"""SPEAR: PPO-clip on fresh and replayed tokens, some of high covariance left out (arXiv 2509.22601).

The covariance clipping is that of Clip-Cov (arXiv 2505.22617), with other limits for replayed tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bapo_lightning.objectives.surrogate import DualClip, clipped_surrogate
from bapo_lightning.objectives.token_table import TokenTable, needs
from bapo_lightning.types import Origin
from bapo_lightning.values import Positive, Share


@needs("logp", "ratio", "advantage", "low", "high", "sequence", "position", "age", "origin", "count")
def kept_tokens(
    table: TokenTable,
    fresh_share: Share = 2e-4,
    fresh_low: Positive = 1.0,
    fresh_high: Positive = 5.0,
    replay_share: Share = 0.02,
    replay_low: Positive = 1.0,
    replay_high: Positive = 40.0,
) -> Tensor:
    """Returns 0 for the tokens that are left out of the update, and 1 for all others, [N].

    Of the fresh tokens, and of the replayed ones, a share (at least one) is left out. They are drawn from the
    unclipped ones whose covariance (A - mean A)(log pi - mean log pi) lies between the limits; means are over
    the tokens of their kind. The draw is a hash of response and position, so that it does not depend on the
    split into micro-batches.

    Args:
        table: whole update, [N], with bounds.
        fresh_share: share of the fresh tokens; this and its limits are Clip-Cov's.
        fresh_low: smallest covariance of a fresh token that may be left out.
        fresh_high: largest one.
        replay_share: share of the replayed tokens; this and its limits are those of the authors' runs on
            mathematics (2 and 60 on ALFWorld and WebShop).
        replay_low: smallest covariance of a replayed token that may be left out.
        replay_high: largest one.
    """
    replayed = table.origin == Origin.REPLAYED
    kinds = (
        (~replayed, fresh_share, fresh_low, fresh_high),
        (replayed, replay_share, replay_low, replay_high),
    )
    dropped = [_dropped(table, *kind) for kind in kinds]
    return torch.where(dropped[0] | dropped[1], torch.zeros_like(table.ratio), 1.0)


def _dropped(table: TokenTable, kind: Tensor, share: float, low: float, high: float) -> Tensor:
    """Returns whether a token is left out, [N] bool."""
    number = table.count * kind
    total = number.sum()

    def centred(values: Tensor) -> Tensor:
        return values - (values * number).sum() / total.clamp_min(1)

    covariance = centred(table.advantage) * centred(table.logp)
    ratio, advantage = table.ratio, table.advantage
    clipped = ratio.clamp(table.low, table.high) * advantage < ratio * advantage
    candidate = kind & table.is_sampled & ~clipped & (covariance > low) & (covariance < high)
    order = torch.where(candidate, _hash(table), 1 << 31).argsort(stable=True)
    sorted_number = (table.count * candidate).gather(0, order)
    drawn = candidate.gather(0, order) & (
        sorted_number.cumsum(0) - sorted_number < (share * total).floor().clamp_min(1)
    )
    return torch.zeros_like(drawn).scatter(0, order, drawn)


def _hash(table: TokenTable) -> Tensor:
    """Returns a number in [0, 2^31) for each token, [N], by the finaliser of MurmurHash3."""
    mixed = (table.sequence * 0x9E3779B1 + table.position * 0x85EBCA6B + table.age) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return (mixed ^ (mixed >> 16)) >> 1


def spear(table: TokenTable, dual_clip: DualClip | None = None) -> Tensor:
    """Returns min(r A, clip(r, low, high) A) per token, [N], and 0 for tokens that are left out.

    Args:
        table: [N] tokens, with bounds; its statistic is `kept_tokens`.
        dual_clip: see `clipped_surrogate`.
    """
    return table.statistic * clipped_surrogate(table.ratio, table.advantage, table.low, table.high, dual_clip)
