"""Sampling of tokens from logits with one given random number each.

Shapes: B rows, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from bapo_lightning.rollout.engine import SamplingParams

BLOCK = 512  # tokens summed together: a vocabulary of 150 000 is 300 numbers to search, then 512


def sample_tokens(logits: Tensor, sampling: SamplingParams, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Samples one token per row of `logits[B, V]`: (tokens[B], log-probs[B] in nats of the sampling
    distribution, those of all tokens [B, V], -inf where one cannot be sampled).

    Temperature, top_k and top_p apply in that order; greedy (temperature 0) puts all mass on the best token:
    log-prob 0. `uniform`: [B] float64 in [0, 1); each picks the token at whose share of the cumulative
    probability it falls.
    """
    if sampling.temperature == 0:
        best = logits.argmax(-1)
        certain = torch.zeros_like(best, dtype=torch.float32)
        return best, certain, torch.full_like(logits, -torch.inf).scatter_(1, best[:, None], 0.0)
    logits = logits.float()
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    logprobs = truncated(logits, sampling.top_k, sampling.top_p).log_softmax(-1)
    chosen = tokens_at(logprobs.exp(), uniform)
    return chosen, logprobs.gather(-1, chosen[:, None])[:, 0], logprobs


def candidates(logprobs: Tensor, noted: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the likeliest tokens of each row, at most `noted` of those that can be sampled, row after row:
    (tokens[M], their log-probs[M], numbers of each row's[B]).
    """
    if noted < logprobs.shape[-1]:
        logprobs, tokens = logprobs.topk(noted)
    else:
        tokens = torch.arange(logprobs.shape[-1], device=logprobs.device).expand_as(logprobs)
    can_be = logprobs > -torch.inf
    return tokens[can_be], logprobs[can_be], can_be.sum(-1)


def tokens_at(mass: Tensor, uniform: Tensor) -> Tensor:
    """Token [B] at which the cumulative sum of `mass[B, V]` passes the share `uniform[B]` of its total; never
    one without mass. Searches blocks of tokens, then the block: sums in float64 over all are slow.
    """
    rows = torch.arange(len(mass), device=mass.device)
    size = min(BLOCK, mass.shape[-1])
    blocks = pad(mass, (0, -mass.shape[-1] % size)).unflatten(-1, (-1, size))  # [B, V / size, size]
    up_to = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    aim = uniform * up_to[:, -1]
    block = first_above(up_to, aim)
    inside = blocks[rows, block].double().cumsum(-1)
    token = block * size + first_above(inside, aim - pad(up_to, (1, 0))[rows, block])
    return token.clamp(max=mass.shape[-1] - 1)


def first_above(cumulative: Tensor, aim: Tensor) -> Tensor:
    """First index [B] at which `cumulative[B, n]` is above `aim[B]`, so that it rises there; the last index
    at which it rises where rounding put `aim` beyond all of it. NaN sums give the last index; the NaN shows
    when the token is scored.
    """
    below_all = torch.nextafter(cumulative[:, -1], cumulative.new_zeros(()))
    index = torch.searchsorted(cumulative, torch.minimum(aim, below_all)[:, None], right=True)[:, 0]
    return index.clamp(max=cumulative.shape[-1] - 1)


def truncated(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """-inf outside the `top_k` likeliest of `logits[B, V]`, then outside the smallest set of mass `top_p`."""
    if 0 < top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], -torch.inf)
    if top_p < 1:
        ordered, order = logits.sort(descending=True)
        mass = ordered.softmax(-1)
        beyond = mass.cumsum(-1) - mass >= top_p  # the tokens before it already hold enough
        logits = logits.masked_fill(beyond.scatter(-1, order, beyond), -torch.inf)
    return logits
