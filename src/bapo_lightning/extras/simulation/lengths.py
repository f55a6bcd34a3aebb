"""Distributions of response lengths, each as a table of equally likely lengths."""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist
from typing import Literal

import numpy as np

LengthKind = Literal["constant", "geometric", "lognormal"]
SIZE = 4096  # entries of a table
_HALVINGS = 60


def length_table(kind: LengthKind, mean: float, longest: int, spread: float) -> np.ndarray:
    """Returns equally likely lengths, int64[SIZE], of a distribution that is cut at `longest` tokens.

    Args:
        kind: `constant`; `geometric`, in which every token may be the last with the same probability;
            `lognormal`, which has a long tail.
        mean: of the cut lengths, in tokens; below `longest`.
        longest: limit in tokens.
        spread: standard deviation of the logarithm of a lognormal one.
    """
    places = (np.arange(SIZE) + 0.5) / SIZE
    if kind == "constant":
        return np.full(SIZE, max(1, round(mean)))
    if kind == "geometric":
        shape = -np.log1p(-places)
    else:
        normal = NormalDist()
        shape = np.exp(spread * np.array([normal.inv_cdf(place) for place in places]))
    return _cut(shape * _scale_for(lambda scale: float(_cut(shape * scale, longest).mean()), mean), longest)


def _cut(lengths: np.ndarray, longest: int) -> np.ndarray:
    return np.clip(np.rint(lengths), 1, longest).astype(np.int64)


def _scale_for(mean_at: Callable[[float], float], mean: float) -> float:
    low, high = 0.0, mean
    while mean_at(high) < mean and high < mean * 2**_HALVINGS:
        high *= 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_at(middle) < mean else (low, middle)
    return high
