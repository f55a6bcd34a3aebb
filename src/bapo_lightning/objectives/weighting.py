"""Weights per token. A weighted sum over the GLOBAL minibatch is the mean that a function is named after.

The normaliser is an argument: a micro-batch or a rank does not know the whole minibatch, and a mean of means
over parts of unequal size is not the mean. With these weights the parts add up.

Each function takes the mask of response tokens, [B, T] bool or 0/1, and counts of the global minibatch. It
returns float32 weights [B, T], zero outside the mask, and raises ValueError if a count is not positive.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from bapo_lightning.system.values import Positive


def token_mean(mask: Tensor, total: float | Tensor) -> Tensor:
    """Returns 1 / total, with the total number of response tokens, so that each token counts the same (DAPO;
    `total` = 1 gives the plain sum of Algorithm 1).
    """
    _check_positive("total", total)
    return mask.to(torch.float32) / total


def sequence_mean(mask: Tensor, num_sequences: float | Tensor) -> Tensor:
    """Returns 1 / (num_sequences * own length), so that each response counts the same (GRPO). Rows must be
    whole responses; a response without tokens gets zeros.
    """
    _check_positive("num_sequences", num_sequences)
    tokens = mask.to(torch.float32)
    return tokens / (tokens.sum(-1, keepdim=True).clamp_min(1) * num_sequences)


def fixed_length(mask: Tensor, num_sequences: float | Tensor, length: Positive) -> Tensor:
    """Returns 1 / (num_sequences * length), which has no length bias (Dr. GRPO, arXiv 2503.20783). The length
    is a constant, usually the length limit of responses.
    """
    _check_positive("num_sequences", num_sequences)
    _check_positive("length", length)
    return mask.to(torch.float32) / (num_sequences * length)


def step_mean(mask: Tensor, num_steps: float | Tensor) -> Tensor:
    """Returns 1 / num_steps: a mean over steps, if the objective of a step is divided among its tokens."""
    _check_positive("num_steps", num_steps)
    return mask.to(torch.float32) / num_steps


def weigh(
    weighting: Callable[..., Tensor],
    mask: Tensor,
    total: float | Tensor,
    num_sequences: float | Tensor,
    num_steps: float | Tensor | None = None,
) -> Tensor:
    """Returns a weighting's weights; without `num_steps` there are as many steps as responses."""
    steps = num_sequences if num_steps is None else num_steps
    counts = {"total": total, "num_sequences": num_sequences, "num_steps": steps}
    takes = parameters_of(weighting)
    return weighting(mask, **{name: count for name, count in counts.items() if name in takes})


@cache
def parameters_of(weighting: Callable[..., Tensor]) -> frozenset[str]:
    """Returns the names of a weighting's parameters; read once, not in every update."""
    return frozenset(inspect.signature(weighting).parameters)


def _check_positive(name: str, value: float | Tensor) -> None:
    if not isinstance(value, Tensor) and not value > 0:  # reading a tensor would wait for the device
        raise ValueError(
            f"{name} must be positive, got {value}: it counts over the whole minibatch, which is never empty"
        )
