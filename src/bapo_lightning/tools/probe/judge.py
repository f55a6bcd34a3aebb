"""Judges a difference between two sides' log-probs by the measured rounding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bapo_lightning.tools.probe.layout import Numbers, TokenLayout

# A server rounds in other places than transformers: kernels fuse steps, and sum in other orders. Its
# differences are about as large as the yardstick, and at most so many times as large (docs/probe.md).
MEAN_FACTOR, LARGEST_FACTOR = 2.0, 4.0
LEAST_FACTOR = 0.6  # and hardly smaller
# In 16 bits only rounding remains for the right weights, and right servers lie at 0.85 to 1.0.
USUAL_FACTOR = 1.3
# Nats. Numbers in float32, of about -10 nats, are not finer; and a yardstick may be 0 by chance.
FLOOR = 5e-6
DECISIVE = 4.0  # standard errors


@dataclass(frozen=True, slots=True)
class Gap:
    """Differences of some tokens' log-probs between a server and weights, in nats."""

    num_tokens: int
    mean: float  # of |server - weights|
    largest: float
    rounding_mean: float  # of the yardstick, over the same tokens
    rounding_largest: float

    @property
    def fits(self) -> bool:
        """Whether rounding explains it. It never explains NaN."""
        return bool(
            self.mean <= MEAN_FACTOR * max(self.rounding_mean, FLOOR)
            and self.largest <= LARGEST_FACTOR * max(self.rounding_largest, FLOOR)
        )


def gaps(layout: TokenLayout, server: Numbers, weights: Numbers, rounding: Numbers) -> dict[str, Gap]:
    """Compares [N] log-probs with [N] others, by the [N] yardstick: of prompt tokens and of sampled ones."""
    by_part, away = dict[str, Gap](), np.abs(server - weights)
    for name, mask in (("prompt", ~layout.is_sampled), ("sampled", layout.is_sampled)):
        if count := int(mask.sum()):
            parts = away[mask], rounding[mask]
            by_part[name] = Gap(count, *(float(each) for part in parts for each in (part.mean(), part.max())))
    return by_part


@dataclass(frozen=True, slots=True)
class Position:
    """Position of a server between two folders' log-probs: 0 at the first, 1 at the second."""

    share: float
    error: float  # standard error of it
    apart: float  # mean |first - second| in nats

    @property
    def side(self) -> int | None:
        """0 or 1: it is this one of the two; None: it is neither, or they cannot be distinguished."""
        near_first = abs(self.share) <= DECISIVE * self.error or abs(self.share) < 0.1
        near_second = abs(self.share - 1) <= DECISIVE * self.error or abs(self.share - 1) < 0.1
        if near_first == near_second:
            return None
        return 0 if near_first else 1

    @property
    def is_blurred(self) -> bool:
        """Whether rounding hides which of the two it is."""
        return not 2 * DECISIVE * self.error < 1.0


def position(layout: TokenLayout, server: Numbers, first: Numbers, second: Numbers) -> Position:
    """Least squares of server - first on second - first, over [N] log-probs each.

    Rounding is noise of either sign, and the path from one folder to the other has one direction in N
    dimensions; so weights can be distinguished that differ by far less than rounding. The standard error
    counts tokens of one sequence as one observation (the sandwich estimator for clusters: Liang and Zeger,
    Biometrika 73, 1986).
    """
    way, away = second - first, server - first
    square = float(way @ way)
    if square == 0.0:
        return Position(0.0, float("inf"), 0.0)
    share = float(away @ way) / square
    parts = np.bincount(layout.clusters, weights=(away - share * way) * way)
    count = len(np.unique(layout.clusters))
    error = float(np.sqrt((parts**2).sum() * count / max(1, count - 1))) / square
    return Position(share, error, float(np.abs(way).mean()))
