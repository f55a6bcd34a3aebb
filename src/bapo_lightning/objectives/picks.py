"""Picks tokens of an update by a score or at random, always the same ones however the update is split.

No function waits for the device, and all work under `torch.vmap`. Shapes: N tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bapo_lightning.objectives.sequences import mean_over_tokens
from bapo_lightning.objectives.token_table import TokenTable

# Constants of splitmix64 (Steele, Lea and Flood, OOPSLA 2014), signed; products of int64 wrap around.
STEP, FIRST, SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
ORDERED_BY = ("sequence", "position", "age")  # columns that `random_order` reads


def random_order(table: TokenTable) -> Tensor:
    """Returns the rows of a table in an order without pattern, [N].

    It depends only on whole numbers, not on the order of rows or on a generator: each token has a number,
    hashed from its response, its position and its age. Log-probs are not used, since their last bits depend
    on the machine, the batch and the number of ranks.
    """
    number = torch.zeros_like(table.sequence)
    for column in (table.sequence, table.position, table.age):
        number = number + column + STEP
        number = (number ^ (number >> 30)) * FIRST
        number = (number ^ (number >> 27)) * SECOND
        number = number ^ (number >> 31)
    return number.argsort()


def first_of(order: Tensor, candidates: Tensor, share: float, count: Tensor) -> Tensor:
    """Returns 1 for the first candidates and 0 for all others, [N]: as many as make up `share` of all tokens,
    rounded down, but at least one if there is any. A row that stands for several tokens may be taken in part.

    Args:
        order: rows in the order of picking, [N].
        candidates: rows that may be picked, [N] bool; a row that stands for no token never is.
        share: of all tokens.
        count: tokens that each row stands for, [N].
    """
    wanted = (share * count.double().sum()).floor().clamp_min(1)
    counts = (count.double() * candidates).gather(0, order)
    left = (wanted - (counts.cumsum(0) - counts)).clamp_min(0)
    taken = torch.where(counts > 0, (left / counts).clamp_max(1), 0.0).to(count.dtype)
    return torch.zeros_like(taken).scatter(0, order, taken)


def covariance(table: TokenTable, count: Tensor) -> Tensor:
    """Returns (A - mean A)(log pi - mean log pi), [N]: each token's term of their covariance, which drives
    the entropy (arXiv 2505.22617). Means are over the `count` tokens, [N], that rows stand for.
    """
    advantage, logp = table.advantage, table.logp
    return (advantage - mean_over_tokens(advantage, count)) * (logp - mean_over_tokens(logp, count))


def unclipped_between(table: TokenTable, count: Tensor, low: float, high: float) -> Tensor:
    """Returns which tokens keep their gradient and have a `covariance` between the limits, [N] bool."""
    value = covariance(table, count)
    clipped = table.ratio.clamp(table.low, table.high) * table.advantage < table.ratio * table.advantage
    return ~clipped & (value > low) & (value < high)
