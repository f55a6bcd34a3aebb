"""The clipped surrogate of Eq. 4, with absolute ratio bounds."""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Gt
from torch import Tensor

from bapo_lightning.system.values import Advice

# exp(20) is 5e8: far outside any clipping bound, yet finite in float32 after products and sums. One broken
# token then gives a huge number in the log instead of inf * 0 = NaN everywhere. verl has the same limit.
LOG_RATIO_LIMIT = 20.0
DualClip = Annotated[float, Gt(1), Advice("must be above 1 (3.0 is usual), or null to switch it off")]


def importance_ratio(logp: Tensor, behaviour_logp: Tensor) -> Tensor:
    """Returns the importance ratio r = exp(log pi - log pi_behaviour), the difference limited to +-20 nats.

    Args:
        logp: log-probs of the tokens under the policy, in nats, any shape.
        behaviour_logp: log-probs under the distribution the tokens were sampled from, same shape.

    Returns:
        Ratios, same shape, differentiable in `logp` (gradient zero beyond the limit).
    """
    return limited_log_ratio(logp, behaviour_logp).exp()


def limited_log_ratio(logp: Tensor, behaviour_logp: Tensor) -> Tensor:
    """Returns log r = log pi - log pi_behaviour, limited to +-20 nats; arguments: see `importance_ratio`."""
    return (logp - behaviour_logp).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def clipped_surrogate(
    ratio: Tensor,
    advantage: Tensor,
    low: float | Tensor,
    high: float | Tensor,
    dual_clip: DualClip | None = None,
) -> Tensor:
    """Returns min(r A, clip(r, low, high) A) per token (Eq. 4), to be maximised. Fixed bounds give PPO-clip.

    Args:
        ratio: r, any shape.
        advantage: A, same shape.
        low: lower bound of the ratio itself (0.8, not 0.2), a number or a 0-dim tensor.
        high: upper bound of the ratio, a number or a 0-dim tensor.
        dual_clip: c > 1; tokens with A < 0 then give at least c A (dual-clip PPO, arXiv 1912.09729), which
            bounds the loss of a token whose ratio exploded. None switches it off, as in the paper.

    Raises:
        ValueError: `dual_clip` is not above 1.
    """
    if dual_clip is not None and dual_clip <= 1:
        raise ValueError(
            f"dual_clip must be above 1 (3.0 is usual) or None to switch it off, got {dual_clip}"
        )
    objective = torch.min(ratio * advantage, _clamp(ratio, low, high) * advantage)
    if dual_clip is None:
        return objective
    return torch.where(advantage < 0, torch.max(objective, dual_clip * advantage), objective)


def _clamp(ratio: Tensor, low: float | Tensor, high: float | Tensor) -> Tensor:
    if not isinstance(low, Tensor) and not isinstance(high, Tensor):
        return ratio.clamp(low, high)
    # clamp takes two numbers or two tensors
    return ratio.clamp(
        *(torch.as_tensor(bound, dtype=ratio.dtype, device=ratio.device) for bound in (low, high))
    )


def clipped_mask(slope: Tensor, advantage: Tensor) -> Tensor:
    """Returns true for tokens with an advantage but no gradient (Eq. 5; also by a dual clip), bool.

    Args:
        slope: d objective / d r, any shape.
        advantage: A, same shape.
    """
    return (slope == 0) & (advantage != 0)


def clipped_fractions(
    slope: Tensor, advantage: Tensor, tokens: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the shares of all, of positive and of negative tokens whose gradient is cut (0-dim; NaN if
    there are no such tokens).

    Args:
        slope: d objective / d r, any shape.
        advantage: A, same shape.
        tokens: number of tokens that each entry stands for, same shape; None means ones.
    """
    tokens = torch.ones_like(slope) if tokens is None else tokens
    clipped = clipped_mask(slope, advantage).float()
    groups = (tokens, tokens * (advantage > 0), tokens * (advantage < 0))
    whole, positive, negative = ((clipped * group).sum() / group.sum() for group in groups)
    return whole, positive, negative
