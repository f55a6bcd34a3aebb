"""Sums over all ranks that are the identity on one rank."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def num_ranks() -> int:
    """World size, 1 when not distributed."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def sum_over_ranks(values: Tensor) -> Tensor:
    """Element-wise sum of `values` over all ranks, in one all-reduce. Every rank must call it."""
    if num_ranks() == 1:
        return values
    total = values.clone()
    dist.all_reduce(total)
    return total


def count_over_ranks(*counts: int, device: torch.device) -> tuple[int, ...]:
    """Host integers summed over all ranks; needs no device work on one rank."""
    if num_ranks() == 1:
        return counts
    return tuple(int(count) for count in sum_over_ranks(torch.tensor(counts, device=device)).tolist())
