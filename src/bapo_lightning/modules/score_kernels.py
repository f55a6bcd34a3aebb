"""Triton kernels of `token_scores`: one pass over the float32 logits forward, one backward.

A program handles one row. Forward, it keeps the largest logit so far and rescales its sums when that grows
(online softmax, arXiv 1805.02867, here with a second sum, for the entropy). Backward, it writes the gradient
in the precision of the product that reads it.

Shapes: N rows, V vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 8192, 8  # columns at once, and warps of a program: the fastest on an H100


@triton.jit
def _score_rows(logits, targets, logp, entropy, peak, norm, scale, width: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    logits += row * width
    # -1e30 is below every logit; minus infinity times 0 would be NaN.
    top, total, weighted = -1e30, 0.0, 0.0
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)
        z = tl.load(logits + column, mask=column < width, other=-1e30) * scale
        higher = tl.maximum(top, tl.max(z, axis=0))
        shrink = tl.exp(top - higher)
        weighted = shrink * (weighted + (top - higher) * total)
        power = tl.exp(z - higher)
        weighted += tl.sum(power * (z - higher), axis=0)
        total = shrink * total + tl.sum(power, axis=0)
        top = higher
    log_total = tl.log(total)
    chosen = tl.load(logits + tl.load(targets + row)) * scale
    tl.store(logp + row, chosen - top - log_total)
    tl.store(entropy + row, log_total - weighted / total)
    tl.store(peak + row, top)
    tl.store(norm + row, total)


@triton.jit
def _turn_rows(  # type: ignore[no-untyped-def]
    logits,
    gradient,
    targets,
    peak,
    norm,
    entropy,
    by_logp,
    by_entropy,
    scale,
    width: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * width
    gradient += row * width
    top, total = tl.load(peak + row), tl.load(norm + row)
    target = tl.load(targets + row)
    from_logp, from_entropy = tl.load(by_logp + row), tl.load(by_entropy + row)
    offset = tl.load(entropy + row) - tl.log(total)
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < width
        shifted = tl.load(logits + column, mask=inside, other=0.0) * scale - top
        p = tl.exp(shifted) / total
        slope = -p * (from_logp + from_entropy * (shifted + offset))
        slope += tl.where(column == target, from_logp, 0.0)
        tl.store(gradient + column, (scale * slope).to(gradient.dtype.element_ty), mask=inside)


def score_rows(
    logits: Tensor, targets: Tensor, scale: float, logp: Tensor, entropy: Tensor, peak: Tensor, norm: Tensor
) -> None:
    """Fills log-prob and entropy [nats], largest scaled logit and sum of the powers of each row, all [N], of
    `logits` [N, V], float32 and contiguous, which are not changed, times `scale`.
    """
    _score_rows[(len(logits),)](
        logits, targets, logp, entropy, peak, norm, scale, logits.shape[1], BLOCK=BLOCK, num_warps=WARPS
    )


def turn_rows(
    logits: Tensor,
    scale: float,
    dtype: torch.dtype,
    is_shifted: bool,
    targets: Tensor,
    peak: Tensor,
    norm: Tensor,
    entropy: Tensor,
    grad_logp: Tensor | None,
    grad_entropy: Tensor | None,
) -> Tensor:
    """Returns the gradient in the logits, [N, V] of `dtype`; in place if the logits have this dtype.
    `is_shifted` is ignored: `score_rows` does not change the logits.

    d logp / dz_j = [j = target] - p_j and dH / dz_j = -p_j (log p_j + H), each times `scale`.
    """
    none = torch.zeros_like(peak)
    gradient = logits if logits.dtype == dtype else torch.empty_like(logits, dtype=dtype)
    _turn_rows[(len(logits),)](
        logits,
        gradient,
        targets,
        peak,
        norm,
        entropy,
        none if grad_logp is None else grad_logp.contiguous(),
        none if grad_entropy is None else grad_entropy.contiguous(),
        scale,
        logits.shape[1],
        BLOCK=BLOCK,
        num_warps=WARPS,
    )
    return gradient
