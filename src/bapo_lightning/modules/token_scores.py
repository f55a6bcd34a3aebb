"""Computes log-prob and entropy of tokens from the hidden states, without ever holding the [N, V] logits.

The forward pass works chunk by chunk: logits = hidden W^T / temperature -> logp, entropy -> forget. The
backward pass computes the same logits again and turns them in place into their gradient. The last chunk is
kept from forward to backward pass; all others are as long, but for the first, so as many tokens as fit into
one chunk are computed once.

Long chunks make the matrix products fast (`system.chunks`). On a GPU the rest is one kernel per pass
(`score_kernels`). On other devices it works in blocks of few rows, which stay in the cache from one operation
to the next.

Shapes: N tokens, D width of the hidden state, V vocabulary, C tokens of a chunk, R tokens of a block.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bapo_lightning.system.chunks import BLOCK_ELEMENTS, CHUNK_ELEMENTS, CPU_BLOCK_ELEMENTS, chunk_elements
from bapo_lightning.system.host import missing_to_build
from bapo_lightning.system.precision import head_products
from bapo_lightning.types import NO_CANDIDATE

# Scores of tokens that a policy returns, in this order; the last only if an objective needs it.
SCORES = ("logp", "entropy", "mean_logp")


def token_scores(
    hidden: Tensor,
    head_weight: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
    chunk_tokens: int | None = None,
    entropy_requires_grad: bool = False,
    half_factors: bool = False,
    others: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Returns log pi(target), the entropy of pi = softmax(hidden W^T / temperature), and log pi of other
    tokens if some are given, in nats.

    It takes O(C V) memory instead of O(N V).

    Args:
        hidden: [N, D].
        head_weight: W, [V, D].
        targets: [N] token ids.
        temperature: divisor of the logits, at which the tokens were sampled.
        chunk_tokens: C; None means `longest_chunk`.
        entropy_requires_grad: let gradients flow through the entropy; otherwise it is a constant.
        half_factors: round the factors of the matrix products to bfloat16 on CUDA, with float32 results; a
            CPU has such products only inside of float32 products (`precision.head_products`).
        others: [N, K] token ids.

    Returns:
        logp [N], entropy [N] and the log-probs [N, K] of `others`, float32 (float64 for float64 inputs),
        differentiable once in `hidden` and `head_weight`. Logits of half-precision inputs are float32 as
        well.

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
        chunk_tokens = longest_chunk(hidden.device, len(head_weight))
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens must be at least 1, got {chunk_tokens}")
    with head_products(half_factors, hidden.device):
        options = 1 / temperature, chunk_tokens, entropy_requires_grad, half_factors
        scores: tuple[Tensor, ...] = _TokenScores.apply(hidden, head_weight, targets, others, *options)
    return scores


def longest_chunk(device: torch.device, words: int) -> int:
    """Returns the tokens of a chunk of logits over a vocabulary of so many words."""
    elements = CHUNK_ELEMENTS
    if device.type == "cuda":
        elements = chunk_elements(torch.cuda.get_device_properties(device).total_memory)
    return max(1, elements // words)


@torch.no_grad()
def mean_logp(
    hidden: Tensor, head_weight: Tensor, targets: Tensor, logp: Tensor, temperature: float = 1.0
) -> Tensor:
    """Returns the mean over the vocabulary of log pi, in nats, without logits and without gradient.

    The mean logit is hidden . mean_v W_v / temperature, and log pi(target) contains the term that is
    subtracted from every logit:

        mean_v log pi(v) = log pi(target) + hidden . (mean_v W_v - W_target) / temperature

    Arguments are as in `token_scores`, which returned `logp` [N]; the result is [N], of the dtype of `logp`.
    """
    difference = head_weight.mean(0, dtype=logp.dtype) - torch.nn.functional.embedding(targets, head_weight)
    return logp + (hidden.to(logp.dtype) * difference).sum(1) / temperature


def among_candidates(
    logp: Tensor, candidate_logp: Tensor, candidates: Tensor, is_cut: bool
) -> tuple[Tensor, Tensor]:
    """Returns log-probs [N] of tokens and [N, K] of their candidates. If `is_cut`, they refer to the
    distribution among candidates; for a token without candidates, to the whole vocabulary. Given are both
    under the whole distribution, in nats, and the candidates' ids [N, K], -1 in place of missing ones.
    """
    there = candidates >= 0
    candidate_logp = torch.where(there, candidate_logp, NO_CANDIDATE)
    if is_cut:
        mass = torch.where(there.any(1), candidate_logp.logsumexp(1), 0.0)
        logp, candidate_logp = logp - mass, candidate_logp - mass[:, None]
    return logp, candidate_logp


class _TokenScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        others: Tensor | None,
        scale: float,
        chunk_tokens: int,
        entropy_requires_grad: bool,
        half_factors: bool,
    ) -> tuple[Tensor, ...]:
        left, head, dtype = _operands(hidden, weight, half_factors)
        logp, entropy, peak, norm = (left.new_empty(len(left), dtype=dtype) for _ in range(4))
        others_logp = None if others is None else left.new_empty(others.shape, dtype=dtype)
        logits = left.new_empty(min(chunk_tokens, len(left)), len(head), dtype=dtype)
        score = kernels().score_rows if _has_kernels(logits) else _score_rows
        for chunk in _chunks(len(left), chunk_tokens):
            chunk_logits = _product(left[chunk], head.T, logits[: chunk.stop - chunk.start])
            if others is not None and others_logp is not None:
                torch.gather(chunk_logits, 1, others[chunk], out=others_logp[chunk])
            score(chunk_logits, targets[chunk], scale, logp[chunk], entropy[chunk], peak[chunk], norm[chunk])
        if others_logp is not None:
            others_logp.mul_(scale).sub_(peak[:, None]).sub_(norm.log()[:, None])
        ctx.scale, ctx.chunk_tokens, ctx.half_factors = scale, chunk_tokens, half_factors
        ctx.set_materialize_grads(False)
        if not entropy_requires_grad:
            ctx.mark_non_differentiable(entropy)
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(hidden, weight, targets, others, peak, norm, entropy)
            ctx.kept = logits  # of the last chunk, as left by `score`
        return (logp, entropy) if others_logp is None else (logp, entropy, others_logp)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_logp: Tensor | None, grad_entropy: Tensor | None, grad_others: Tensor | None = None
    ) -> tuple[Tensor | None, ...]:
        with head_products(ctx.half_factors, ctx.saved_tensors[0].device):
            return _TokenScores.gradients(ctx, grad_logp, grad_entropy, grad_others)

    @staticmethod
    def gradients(
        ctx: Any, grad_logp: Tensor | None, grad_entropy: Tensor | None, grad_others: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Returns the gradients for the arguments of `forward`."""
        hidden, weight, targets, others, peak, norm, entropy = ctx.saved_tensors
        # Each log-prob adds 1 at its token and subtracts p from all: the latter is done once for their sum.
        of_all = grad_logp
        if grad_others is not None:
            of_others = grad_others.sum(1)
            of_all = of_others if grad_logp is None else grad_logp + of_others
            moved = torch.cat([-of_others[:, None], grad_others], 1).mul_(ctx.scale)
            places = torch.cat([targets[:, None], others], 1)
        left, head, dtype = _operands(hidden, weight, ctx.half_factors)
        # The kept chunk is overwritten, so a second backward pass (retain_graph) has to compute it again.
        kept, ctx.kept = ctx.kept, None
        rows_at_once = min(ctx.chunk_tokens, len(left))
        buffer = left.new_empty(rows_at_once, len(head), dtype=dtype) if kept is None else kept
        grad_hidden = torch.empty_like(left, dtype=dtype) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(head, dtype=dtype) if ctx.needs_input_grad[1] else None
        turn = kernels().turn_rows if _has_kernels(buffer) else _turn_rows
        for chunk in reversed(_chunks(len(left), ctx.chunk_tokens)):
            logits = buffer[: chunk.stop - chunk.start]
            if kept is None:
                _product(left[chunk], head.T, logits)
            known = (each[chunk] for each in (targets, peak, norm, entropy))
            upstream = (None if grad is None else grad[chunk] for grad in (of_all, grad_entropy))
            gradient = turn(logits, ctx.scale, left.dtype, kept is not None, *known, *upstream)
            if grad_others is not None:
                gradient.scatter_add_(1, places[chunk], moved[chunk].to(gradient.dtype))
            kept = None
            if grad_hidden is not None:
                _product(gradient, head, grad_hidden[chunk])
            if grad_weight is not None:
                _add_product(gradient.T, left[chunk], grad_weight)
        return _as(grad_hidden, hidden.dtype), _as(grad_weight, weight.dtype), *(None,) * 6


def _score_rows(
    logits: Tensor, targets: Tensor, scale: float, logp: Tensor, entropy: Tensor, peak: Tensor, norm: Tensor
) -> None:
    """Fills [C] scores of logits [C, V], which it scales and shifts by their peaks, block by block."""
    powers = torch.empty_like(logits[: _block_tokens(logits)])
    for rows in _slices(0, len(logits), len(powers)):
        shifted = logits[rows].mul_(scale)
        top = shifted.amax(1, keepdim=True)
        power = torch.exp(shifted.sub_(top), out=powers[: len(shifted)])
        total = power.sum(1, keepdim=True)
        log_total = total.log()
        logp_rows = shifted.gather(1, targets[rows, None]) - log_total
        spread = log_total - power.mul_(shifted).sum(1, keepdim=True) / total
        for whole, part in zip((logp, entropy, peak, norm), (logp_rows, spread, top, total), strict=True):
            whole[rows] = part.squeeze(1)


def _turn_rows(
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
    """Returns the gradient in the logits z [C, V], which it overwrites; other tensors are [C].

    d logp / dz_j = [j = target] - p_j and dH / dz_j = -p_j (log p_j + H), where p = exp(z - peak) / norm.
    """
    for rows in _slices(0, len(logits), _block_tokens(logits)):
        shifted, total = logits[rows], norm[rows, None]
        if not is_shifted:
            shifted.mul_(scale).sub_(peak[rows, None])
        chosen = torch.zeros_like(total) if grad_logp is None else grad_logp[rows, None] * scale
        factor = -chosen / total  # the norm divides here: [R, 1] instead of [R, V]
        if grad_entropy is not None:
            offset = entropy[rows, None] - total.log()
            factor = (shifted + offset).mul_(-grad_entropy[rows, None] * scale / total).add_(factor)
        shifted.exp_().mul_(factor).scatter_add_(1, targets[rows, None], chosen)
    return logits.to(dtype)


def _has_kernels(logits: Tensor) -> bool:
    return logits.is_cuda and logits.dtype is torch.float32 and kernels() is not None


@cache
def kernels() -> Any:
    """Returns `score_kernels` if Triton can compile it, else None."""
    if find_spec("triton") is None or missing_to_build("C") is not None:
        return None
    from bapo_lightning.modules import score_kernels

    return score_kernels


def _operands(hidden: Tensor, weight: Tensor, half_factors: bool) -> tuple[Tensor, Tensor, torch.dtype]:
    """Returns the factors of the matrix products, and the dtype of their results."""
    dtype = torch.promote_types(hidden.dtype, weight.dtype)
    result = torch.promote_types(dtype, torch.float32)
    if hidden.device.type != "cuda":  # only CUDA multiplies half-precision factors into a float32 result
        dtype = result
    elif half_factors:
        dtype = torch.bfloat16
    return hidden.to(dtype), weight.to(dtype), result


def _chunks(tokens: int, size: int) -> list[slice]:
    """Returns the rows of each chunk; the first one takes the rest, so that the kept one is whole."""
    first = tokens % size
    return [*_slices(0, first, size), *_slices(first, tokens, size)]


def _slices(start: int, stop: int, size: int) -> list[slice]:
    return [slice(first, min(first + size, stop)) for first in range(start, stop, size)]


def _block_tokens(logits: Tensor) -> int:
    """Returns R."""
    elements = CPU_BLOCK_ELEMENTS if logits.device.type == "cpu" else BLOCK_ELEMENTS
    return max(1, elements // logits.shape[1])


def _product(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    if left.dtype == out.dtype:
        return torch.mm(left, right, out=out)
    return torch.mm(left, right, out_dtype=out.dtype, out=out)


def _add_product(left: Tensor, right: Tensor, total: Tensor) -> Tensor:
    if left.dtype == total.dtype:
        return total.addmm_(left, right)
    return torch.addmm(total, left, right, out_dtype=total.dtype, out=total)


def _as(gradient: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if gradient is None else gradient.to(dtype)
