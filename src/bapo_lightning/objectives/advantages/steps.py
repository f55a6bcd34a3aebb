"""Advantages of the steps of a response."""

from __future__ import annotations

from collections.abc import Sequence


def step_advantages(values: Sequence[float], outcome: float) -> list[float]:
    """Returns A_k = V(s_k+1) - V(s_k) of each of K steps, where the outcome takes the place of V(s_K); they
    add up to outcome - V(s_0).

    This is Eq. 6 of arXiv 2412.18279 at beta = 0. The paper samples several next steps from each state and
    takes the mean of their values for V(s_k) (Eq. 13); a response has one, so that the critic's own is taken.

    Args:
        values: V(s_0), ..., V(s_K-1) of the prompt and of each prefix that ends a step.
        outcome: outcome of the whole response.
    """
    return [after - before for before, after in zip(values, [*values[1:], outcome], strict=True)]
