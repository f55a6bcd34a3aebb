"""Log-prob and entropy of tokens from the hidden states, without ever holding the [N, V] logits.

The forward pass goes chunk by chunk: logits = hidden W^T / temperature -> logp, entropy -> forget. The
backward pass computes the same logits again and turns them in place into their gradient. The last chunk is
kept from forward to backward pass, so tokens that fit into one chunk are computed once.

Chunks are as long as memory allows, for the sake of the matrix products. Elementwise work goes block by block
of few rows, which stay in the cache from one operation to the next.

Shapes: N tokens, D width of the hidden state, V vocabulary, C tokens of a chunk, R tokens of a block.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bapo_lightning.precision import head_products

# What a policy returns of tokens, in this order; the last one only if an objective needs it.
SCORES = ("logp", "entropy", "mean_logp")
# Elements of the [C, V] float32 buffer if chunk_tokens is not given: 512 MiB. The matrix products then run at
# full speed (883 tokens of a vocabulary of 152 000), and the buffer is small compared with the model.
CHUNK_ELEMENTS = 1 << 27
# Elements of a [R, V] block: 4 MiB on a CPU, which the caches of a few cores hold; on an accelerator enough
# to keep all of it busy.
CPU_BLOCK_ELEMENTS, BLOCK_ELEMENTS = 1 << 20, 1 << 25


def token_scores(
    hidden: Tensor,
    head_weight: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
    chunk_tokens: int | None = None,
    entropy_requires_grad: bool = False,
    half_factors: bool = False,
) -> tuple[Tensor, Tensor]:
    """Returns log pi(target) and the entropy of pi = softmax(hidden W^T / temperature), in nats.

    It takes O(C V) memory instead of O(N V).

    Args:
        hidden: [N, D].
        head_weight: W, [V, D].
        targets: [N] token ids.
        temperature: divisor of the logits, at which the tokens were sampled.
        chunk_tokens: C; None means as many as make a chunk of `CHUNK_ELEMENTS` logits.
        entropy_requires_grad: let gradients flow through the entropy; otherwise it is a constant.
        half_factors: round the factors of the matrix products to bfloat16 on CUDA, whose results stay
            float32; a CPU has such products only inside of float32 ones (`precision.head_products`).

    Returns:
        logp [N] and entropy [N], float32 (float64 for float64 inputs), differentiable once in `hidden` and
        `head_weight`. Logits of half-precision inputs are float32 as well.

    Raises:
        ValueError: shapes do not fit, or the temperature or the chunk size is not positive.
    """
    fit = hidden.dim() == head_weight.dim() == 2 and hidden.shape[1] == head_weight.shape[1]
    if not fit or targets.shape != hidden.shape[:1]:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in (hidden, head_weight, targets))
        raise ValueError(f"expected hidden [N, D], head_weight [V, D] and targets [N], got {shapes}")
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}; greedy sampling has no log-probs")
    if chunk_tokens is None:
        chunk_tokens = max(1, CHUNK_ELEMENTS // len(head_weight))
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens must be at least 1, got {chunk_tokens}")
    with head_products(half_factors, hidden.device):
        logp, entropy = _TokenScores.apply(
            hidden, head_weight, targets, 1 / temperature, chunk_tokens, entropy_requires_grad, half_factors
        )
    return logp, entropy


@torch.no_grad()
def mean_logp(
    hidden: Tensor, head_weight: Tensor, targets: Tensor, logp: Tensor, temperature: float = 1.0
) -> Tensor:
    """Returns the mean over the vocabulary of log pi, in nats, without logits and without gradient.

    The mean logit is hidden . mean_v W_v / temperature, and log pi(target) has what is subtracted from every
    logit:

        mean_v log pi(v) = log pi(target) + hidden . (mean_v W_v - W_target) / temperature

    Args:
        hidden: [N, D].
        head_weight: W, [V, D].
        targets: [N] token ids.
        logp: log pi(target) of `token_scores`, [N].
        temperature: the same as there.

    Returns:
        [N], of the dtype of `logp`.
    """
    difference = head_weight.mean(0, dtype=logp.dtype) - torch.nn.functional.embedding(targets, head_weight)
    return logp + (hidden.to(logp.dtype) * difference).sum(1) / temperature


class _TokenScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        scale: float,
        chunk_tokens: int,
        entropy_requires_grad: bool,
        half_factors: bool,
    ) -> tuple[Tensor, Tensor]:
        left, head, dtype = _operands(hidden, weight, half_factors)
        logp, entropy, peak, norm = (left.new_empty(len(left), 1, dtype=dtype) for _ in range(4))
        logits = left.new_empty(min(chunk_tokens, len(left)), len(head), dtype=dtype)
        powers = torch.empty_like(logits[: _block_tokens(logits)])
        for chunk in _slices(0, len(left), chunk_tokens):
            _product(left[chunk], head.T, logits[: chunk.stop - chunk.start])
            for rows in _slices(chunk.start, chunk.stop, len(powers)):
                shifted = _block(logits, rows, chunk).mul_(scale)
                peak[rows] = shifted.amax(1, keepdim=True)
                power = torch.exp(shifted.sub_(peak[rows]), out=powers[: len(shifted)])
                norm[rows] = power.sum(1, keepdim=True)
                log_norm = norm[rows].log()
                logp[rows] = shifted.gather(1, targets[rows, None]) - log_norm
                entropy[rows] = log_norm - power.mul_(shifted).sum(1, keepdim=True) / norm[rows]
        ctx.scale, ctx.chunk_tokens, ctx.half_factors = scale, chunk_tokens, half_factors
        ctx.set_materialize_grads(False)
        logp, entropy = logp.squeeze(1), entropy.squeeze(1)
        if not entropy_requires_grad:
            ctx.mark_non_differentiable(entropy)
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(hidden, weight, targets, peak, norm, entropy)
            ctx.kept = logits  # shifted logits of the last chunk
        return logp, entropy

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_logp: Tensor | None, grad_entropy: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        with head_products(ctx.half_factors, ctx.saved_tensors[0].device):
            return _TokenScores.gradients(ctx, grad_logp, grad_entropy)

    @staticmethod
    def gradients(
        ctx: Any, grad_logp: Tensor | None, grad_entropy: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, peak, norm, entropy = ctx.saved_tensors
        left, head, dtype = _operands(hidden, weight, ctx.half_factors)
        # The kept chunk is overwritten, so a second backward pass (retain_graph) has to compute it again.
        kept, ctx.kept = ctx.kept, None
        rows_at_once = min(ctx.chunk_tokens, len(left))
        buffer = left.new_empty(rows_at_once, len(head), dtype=dtype) if kept is None else kept
        grad_hidden = torch.empty_like(left, dtype=dtype) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(head, dtype=dtype) if ctx.needs_input_grad[1] else None
        for chunk in reversed(_slices(0, len(left), ctx.chunk_tokens)):
            gradient = buffer[: chunk.stop - chunk.start]
            fresh, kept = kept is None, None
            if fresh:
                _product(left[chunk], head.T, gradient)
            for rows in _slices(chunk.start, chunk.stop, _block_tokens(buffer)):
                shifted = _block(buffer, rows, chunk)
                if fresh:
                    shifted.mul_(ctx.scale).sub_(peak[rows])
                upstream = (
                    None if grad is None else grad[rows, None] * ctx.scale
                    for grad in (grad_logp, grad_entropy)
                )
                _to_gradient(shifted, norm[rows], targets[rows, None], entropy[rows, None], *upstream)
            gradient = gradient.to(left.dtype)
            if grad_hidden is not None:
                _product(gradient, head, grad_hidden[chunk])
            if grad_weight is not None:
                _add_product(gradient.T, left[chunk], grad_weight)
        return _as(grad_hidden, hidden.dtype), _as(grad_weight, weight.dtype), *(None,) * 5


def _to_gradient(
    shifted: Tensor,
    norm: Tensor,
    targets: Tensor,
    entropy: Tensor,
    grad_logp: Tensor | None,
    grad_entropy: Tensor | None,
) -> None:
    """Replaces `shifted` = z - peak, [R, V], by the gradient in the logits z; other arguments are [R, 1].

    d logp / dz_j = [j = target] - p_j and dH / dz_j = -p_j (log p_j + H), where p = exp(shifted) / norm.
    """
    if grad_logp is None:
        grad_logp = torch.zeros_like(norm)
    factor = -grad_logp / norm  # the norm divides here: [R, 1] instead of [R, V]
    if grad_entropy is not None:
        factor = (shifted + (entropy - norm.log())).mul_(-grad_entropy / norm).add_(factor)
    shifted.exp_().mul_(factor).scatter_add_(1, targets, grad_logp)


def _operands(hidden: Tensor, weight: Tensor, half_factors: bool) -> tuple[Tensor, Tensor, torch.dtype]:
    """Factors of the matrix products, and the dtype of their results."""
    dtype = torch.promote_types(hidden.dtype, weight.dtype)
    result = torch.promote_types(dtype, torch.float32)
    if hidden.device.type != "cuda":  # only CUDA multiplies half-precision factors into a float32 result
        dtype = result
    elif half_factors:
        dtype = torch.bfloat16
    return hidden.to(dtype), weight.to(dtype), result


def _slices(start: int, stop: int, size: int) -> list[slice]:
    return [slice(first, min(first + size, stop)) for first in range(start, stop, size)]


def _block_tokens(logits: Tensor) -> int:
    elements = CPU_BLOCK_ELEMENTS if logits.device.type == "cpu" else BLOCK_ELEMENTS
    return max(1, elements // logits.shape[1])


def _block(logits: Tensor, rows: slice, chunk: slice) -> Tensor:
    """Rows [R, V] of a chunk's buffer; `rows` and `chunk` count among all tokens."""
    return logits[rows.start - chunk.start : rows.stop - chunk.start]


def _product(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    if left.dtype == out.dtype:
        return torch.mm(left, right, out=out)
    return out.copy_(torch.mm(left, right, out_dtype=out.dtype))


def _add_product(left: Tensor, right: Tensor, total: Tensor) -> Tensor:
    if left.dtype == total.dtype:
        return total.addmm_(left, right)
    return total.add_(torch.mm(left, right, out_dtype=total.dtype))


def _as(gradient: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if gradient is None else gradient.to(dtype)
