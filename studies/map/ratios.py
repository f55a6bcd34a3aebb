"""Ratios of means over seeds, with 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul

from bapo_lightning.report.intervals import LEAST_VALUES, t_quantile


@dataclass(frozen=True)
class RatioInterval:
    """A ratio of two means, and the ends of its 95 % interval, which may be asymmetric."""

    value: float
    lower: float
    upper: float

    def text(self, decimals: int) -> str:
        """Formats the ratio, and both ends in brackets."""
        return f"{self.value:.{decimals}f} ({self.lower:.{decimals}f} to {self.upper:.{decimals}f})"


def ratio_interval(numerators: Sequence[float], denominators: Sequence[float]) -> RatioInterval | None:
    """Fieller's interval (1954) of mean(numerators) / mean(denominators), for paired values.

    It reflects the noise of both and their correlation: for identical values it is 1 to 1. None if the
    interval is unbounded, as the denominators may have mean zero; always so below `LEAST_VALUES`.
    """
    count = len(numerators)
    if count < LEAST_VALUES:
        return None
    top, bottom = math.fsum(numerators) / count, math.fsum(denominators) / count
    of_top = [value - top for value in numerators]
    of_bottom = [value - bottom for value in denominators]
    scale = t_quantile(count - 1) ** 2 / count / (count - 1)
    # Ratios q for which mean(numerator - q * denominator) does not differ from 0: a q^2 - 2 b q + c <= 0
    a, b, c = (
        one * other - scale * math.fsum(map(mul, ones, others))
        for one, other, ones, others in (
            (bottom, bottom, of_bottom, of_bottom),
            (top, bottom, of_top, of_bottom),
            (top, top, of_top, of_top),
        )
    )
    if a <= 0:
        return None
    room = math.sqrt(max(0.0, b * b - a * c))
    return RatioInterval(top / bottom, (b - room) / a, (b + room) / a)
