"""Similarity of two gradients."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


@torch.no_grad()
def inner_product(pairs: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Returns the inner product of two gradients, sum of g h over all of their numbers, 0-dim float64.
    Products of shards add up to the product of the whole.

    Args:
        pairs: both gradients of each weight, of one shape and dtype; at least one weight. Products are
            computed in float32 or higher.
    """
    return torch.stack([torch.dot(_numbers(one), _numbers(other)).double() for one, other in pairs]).sum()


def cosine(product: Tensor, square: Tensor, other_square: Tensor) -> Tensor:
    """Returns g.h / (|g| |h|), 0-dim: 1 for equal directions, 0 for unrelated ones; NaN if a gradient is 0.

    Between successive updates it falls if steps overshoot, and is high if stale data repeat themselves (GAC,
    arXiv 2603.01501). Scaling of gradients, such as clipping, does not change it.

    Args:
        product: g.h by `inner_product`, 0-dim.
        square: g.g.
        other_square: h.h.
    """
    return product / (square.sqrt() * other_square.sqrt())


def _numbers(gradient: Tensor) -> Tensor:
    flat = gradient.reshape(-1)
    return flat.float() if flat.dtype in (torch.float16, torch.bfloat16) else flat
