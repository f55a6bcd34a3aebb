"""Computations of all ranks together; on one rank they return their input."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor


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
    """Host integers summed over all ranks; with one rank the device does no work."""
    if num_ranks() == 1:
        return counts
    return tuple(int(count) for count in sum_over_ranks(torch.tensor(counts, device=device)).tolist())


def full_tensor(tensor: Tensor) -> Tensor:
    """A tensor unchanged, or assembled from its shards. Every rank must call it, in the same order."""
    if not isinstance(tensor, DTensor):
        return tensor
    with torch.inference_mode(False), torch.no_grad():
        return tensor.full_tensor()


def max_over_ranks(count: int) -> int:
    """The largest of the ranks' counts. Every rank must call it."""
    if num_ranks() == 1:
        return count
    counts = torch.tensor(count)
    dist.all_reduce(counts, dist.ReduceOp.MAX)
    return int(counts)


def from_controller(value: Any) -> Any:
    """The controller's value, through the host. Every rank must call it."""
    if num_ranks() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def gather_rows(rows: Tensor, to_all_ranks: bool = False) -> list[Tensor] | None:
    """The rows [K, N] of all ranks in rank order, on the host: on the controller, None elsewhere; or
    to_all_ranks. K and the type are the same on all ranks; N may differ and be 0. Every rank must call it.
    """
    counts = torch.zeros(num_ranks(), dtype=torch.long)
    counts[dist.get_rank()] = rows.shape[1]
    dist.all_reduce(counts)
    padded = torch.nn.functional.pad(rows, (0, int(counts.max()) - rows.shape[1]))
    parts = [torch.empty_like(padded) for _ in counts] if to_all_ranks or dist.get_rank() == 0 else None
    if to_all_ranks:
        dist.all_gather(parts, padded)
    else:
        dist.gather(padded, parts)
    return parts and [part[:, :count] for part, count in zip(parts, counts.tolist(), strict=True)]
