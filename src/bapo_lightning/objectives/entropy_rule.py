"""The Entropy-Clip Rule (Eq. 6-7, Table 4): the change of the policy's entropy by unclipped tokens."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class QuadrantMasses(NamedTuple):
    """Shares of sum |A X| by sign of A and probability, 0-dim float64; they add up to 1, or all are 0."""

    positive_high_prob: Tensor  # lowers entropy
    positive_low_prob: Tensor  # raises entropy
    negative_high_prob: Tensor  # raises entropy
    negative_low_prob: Tensor  # lowers entropy


@torch.no_grad()
def predicted_entropy_change(
    logp: Tensor,
    advantage: Tensor,
    alive: Tensor,
    learning_rate: float | Tensor,
    weight: Tensor | None = None,
) -> Tensor:
    """Returns the entropy change -eta Cov(log pi(y), A(y) X(y)) over the tokens (Eq. 6), weighted by
    `weight`.

    It is the derivative of the entropy of a tabular softmax policy along a step of its *natural* gradient
    (logits += eta A X). The plain policy gradient also scales a token's step by its probability, and AdamW
    changes it further, so that the sign and the trend are meaningful but not the size.

    Args:
        logp: log-probs of the sampled tokens under the policy, in nats, any shape.
        advantage: A, same shape.
        alive: X, same shape: true if the token's gradient is not clipped. Clipped tokens stay in the
            covariance, with A X = 0.
        learning_rate: eta.
        weight: same shape, non-negative; None means ones. Zero excludes a token (padding), whatever its
            other values.

    Returns:
        Predicted change of the entropy in nats, 0-dim float64; 0 if no token has weight.
    """
    weight = _weights(logp, weight)
    centred = _centred(logp, weight)
    covariance = _weighted_mean(centred * _alive_advantage(advantage, alive, weight), weight)
    return -learning_rate * covariance


@torch.no_grad()
def quadrant_masses(
    logp: Tensor, advantage: Tensor, alive: Tensor, weight: Tensor | None = None
) -> QuadrantMasses:
    """Returns the shares of sum w |A X| in the four quadrants of Table 4.

    High probability means log pi at or above its weighted mean. This is the centre of the covariance, so the
    tokens of each quadrant move the entropy as the table says.

    Arguments are as in `predicted_entropy_change`.
    """
    weight = _weights(logp, weight)
    high = _centred(logp, weight) >= 0
    signed = weight * _alive_advantage(advantage, alive, weight)
    total = signed.abs().sum()
    scale = torch.where(total > 0, 1 / total, 0.0)
    positive, negative = signed.clamp_min(0) * scale, -signed.clamp_max(0) * scale
    return QuadrantMasses(
        (positive * high).sum(), (positive * ~high).sum(), (negative * high).sum(), (negative * ~high).sum()
    )


def _weights(logp: Tensor, weight: Tensor | None) -> Tensor:
    return torch.ones_like(logp, dtype=torch.float64) if weight is None else weight.to(torch.float64)


def _alive_advantage(advantage: Tensor, alive: Tensor, weight: Tensor) -> Tensor:
    return torch.where(alive.bool() & (weight > 0), advantage.to(torch.float64), 0.0)


def _centred(logp: Tensor, weight: Tensor) -> Tensor:
    # Padding may hold -inf or NaN, and 0 * NaN is NaN.
    known = torch.where(weight > 0, logp.to(torch.float64), 0.0)
    return known - _weighted_mean(known, weight)


def _weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    total = weight.sum()
    return torch.where(total > 0, (weight * values).sum() / total, 0.0)
