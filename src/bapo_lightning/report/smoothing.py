"""Moving averages of curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean


def moving_average(
    values: Sequence[float], window: int, middle: Callable[[Sequence[float]], float] = fmean
) -> list[float]:
    """Centred moving average (or median) of the same length; at both ends the window shrinks."""
    half = window // 2
    return [middle(values[max(0, index - half) : index - half + window]) for index in range(len(values))]


def smoothing_window(count: int, period: int = 1) -> int:
    """Updates to average over: a fifteenth of `count`, in whole periods (rollout batches) if two of them fit.

    Updates on one rollout batch differ by age; a window that cuts through a batch would show its saw-tooth.
    """
    if not 1 < period <= count // 2:
        return 2 * (count // 30) + 1
    return period * max(1, round(count / (15 * period)))
