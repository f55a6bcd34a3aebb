"""Token scores by Liger's kernel for Hopper GPUs, which multiplies bfloat16 factors and never writes a logit.

It rounds more than `token_scores`: logits to float16 (by at most 0.008 nats below 32), entropies to bfloat16,
and the head's gradient to bfloat16 after every 1,024 tokens, also if the head is frozen. It is compiled again
for every 256 tokens more, from 1,800 to 17,000. It has not run on a GPU yet; in the tests, Liger's PyTorch
version for other devices stands in for it. Source: liger-kernel 0.8.5,
ops/fused_linear_scaled_cross_entropy.py and ops/cutedsl/ops/fused_scaled_cross_entropy_sm90.py.

Shapes: N tokens, D width of the hidden state, V vocabulary.
"""

from __future__ import annotations

import os
from functools import cache

import torch
from torch import Tensor

HOPPER = (9, 0)  # compute capability


@cache
def has_liger_head() -> bool:
    """Whether the kernel, and NVIDIA's compiler of its language, can be imported."""
    try:
        import liger_kernel.ops.cutedsl.ops.fused_scaled_cross_entropy_sm90  # noqa: F401
    except (ImportError, OSError, RuntimeError, AttributeError):  # also: a driver that does not fit
        return False
    return True


def is_hopper(device: torch.device) -> bool:
    """Whether the device is a GPU that the kernel was written for."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == HOPPER


def takes(hidden: Tensor, head_weight: Tensor, half_factors: bool) -> bool:
    """Whether the kernel can score these tokens; arguments as of `liger_scores`."""
    has_halves = half_factors or hidden.dtype == head_weight.dtype == torch.bfloat16
    return has_halves and len(hidden) > 0 and is_hopper(hidden.device) and has_liger_head()


def liger_scores(
    hidden: Tensor,
    head_weight: Tensor,
    targets: Tensor,
    temperature: float,
    entropy_requires_grad: bool,
    half_factors: bool,
) -> tuple[Tensor, Tensor]:
    """Returns log pi(target) and the entropy of pi = softmax(hidden W^T / temperature), both [N], float32, in
    nats and differentiable as in `token_scores`, whose arguments have the same meaning.
    """
    from liger_kernel.ops.fused_linear_scaled_cross_entropy import LigerFusedLinearScaledCrossEntropyFunction

    # The check of targets would make the host wait for the device.
    os.environ.setdefault("LIGER_SCALED_CE_SM90_VALIDATE_TARGETS", "0")
    if half_factors:
        hidden, head_weight = hidden.bfloat16(), head_weight.bfloat16()
    loss, entropy = LigerFusedLinearScaledCrossEntropyFunction.apply(
        hidden, head_weight, targets, temperature, return_entropy=True
    )
    return -loss, entropy.float() if entropy_requires_grad else entropy.detach().float()
