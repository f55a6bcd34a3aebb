"""Corrections by loops over responses, each from the formula of its source; numpy only.

Columns are those of a token table, [N] float64; a weight belongs to each token.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log, sqrt

import numpy as np

Array = np.ndarray
Columns = dict[str, Array]


def of_responses(columns: Columns, weight: Callable[[Array], float]) -> Array:
    """Gives the tokens of each response what `weight` makes of their numbers."""
    found = np.empty(len(columns["sequence"]))
    for sequence in set(columns["sequence"].tolist()):
        own = np.flatnonzero(columns["sequence"] == sequence)
        found[own] = weight(own)
    return found


def prefix(columns: Columns, values: Array, over: Callable[[Array], float]) -> Array:
    """What `over` makes of the numbers of each token's response up to the token."""
    found = np.empty(len(values))
    for token, sequence in enumerate(columns["sequence"]):
        own = np.flatnonzero(columns["sequence"] == sequence)
        found[token] = over(values[own[own <= token]])
    return found


def gap(columns: Columns) -> Array:
    """pi_proximal / pi_behaviour."""
    return np.exp(columns["proximal_logp"] - columns["behaviour_logp"])


def sequence_truncated(columns: Columns, cap: float) -> Array:
    """min(product, cap)."""
    return of_responses(columns, lambda own: min(float(np.prod(gap(columns)[own])), cap))


def prefix_truncated(columns: Columns, cap: float) -> Array:
    """min(product up to the token, cap)."""
    return np.minimum(prefix(columns, gap(columns), np.prod), cap)


def carm(columns: Columns, high: float) -> Array:
    """0 for a response whose mean of |log p - log q| exceeds log(high)."""
    moved = np.abs(columns["logp"] - columns["behaviour_logp"])
    return of_responses(columns, lambda own: float(moved[own].mean() <= log(high)))


def sequence_masked(columns: Columns, low: float, high: float, level: str, weigh: bool) -> Array:
    """The product or its T-th root, or 1, within the bounds; else 0."""

    def weight(own: Array) -> float:
        measure = float(np.prod(gap(columns)[own])) ** (1 / len(own) if level == "geometric" else 1)
        return (measure if weigh else 1.0) if low <= measure <= high else 0.0

    return of_responses(columns, weight)


def outlier(columns: Columns, low: float, high: float) -> Array:
    """0 for a response with any token outside the bounds."""
    return of_responses(columns, lambda own: float(all(low <= gap(columns)[row] <= high for row in own)))


def kpop(columns: Columns, threshold: float) -> Array:
    """The gap, but 0 where the larger of both binary KL divergences exceeds the threshold."""

    def kl(p: float, q: float) -> float:
        return p * log(p / q) + (1 - p) * log((1 - p) / (1 - q))

    found = gap(columns)
    for row, logs in enumerate(zip(columns["proximal_logp"], columns["behaviour_logp"], strict=True)):
        p, q = (min(max(exp(value), 1e-8), 1 - 1e-8) for value in logs)
        found[row] *= max(kl(p, q), kl(q, p)) <= threshold
    return found


def opsm(columns: Columns, threshold: float) -> Array:
    """0 for a response with A < 0 whose mean of log q - log p exceeds the threshold."""
    drift = columns["behaviour_logp"] - columns["logp"]
    return of_responses(
        columns, lambda own: float(columns["advantage"][own[0]] >= 0 or drift[own].mean() <= threshold)
    )


def log_linear(columns: Columns, version: str) -> Array:
    """Log of pi_behaviour^(1 - a) pi^a, a = (v_proximal - v_behaviour) / (v - v_behaviour)."""
    found = np.empty(len(columns["logp"]))
    for row, age in enumerate(columns["age"]):
        ahead = age - 1 if version == "previous" else columns["age_at_entry"][row]
        share = min(max(ahead / age, 0.0), 1.0) if age > 0 else 0.0
        found[row] = (1 - share) * columns["behaviour_logp"][row] + share * columns["logp"][row]
    return found


def step_scale(columns: Columns, usual: float) -> float:
    """min(1, sqrt(ESS / B / usual)) of untruncated weights pi / pi_behaviour of responses."""
    ratio = np.exp(columns["logp"] - columns["behaviour_logp"])
    weights = [
        float(np.prod(ratio[columns["sequence"] == each])) for each in set(columns["sequence"].tolist())
    ]
    ess = sum(weights) ** 2 / sum(weight**2 for weight in weights)
    return min(1.0, sqrt(ess / len(weights) / usual))
