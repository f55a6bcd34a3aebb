"""DCPO's dynamic clipping: unlikely tokens may move further (arXiv 2509.02333)."""

from __future__ import annotations

from torch import Tensor

from bapo_lightning.objectives.surrogate import DualClip, clipped_surrogate
from bapo_lightning.objectives.token_table import TokenTable


def dcpo_clip(table: TokenTable, most: DualClip = 10.0, dual_clip: DualClip | None = None) -> Tensor:
    """Returns min(r A, clip(r, lo, hi) A) per token, [N], with bounds that depend on the token's probability
    q under the policy that the ratio is taken to:

        lo = (1 + sqrt(max(0, 1 - 4 eps_low / q))) / 2        eps_low = 1 - low
        hi = (1 + sqrt(1 + 4 eps_high / q)) / 2               eps_high = high - 1,  hi <= most

    which keeps |p - q| r within eps. A token of q <= 4 eps_low may fall to half its probability.

    Args:
        table: [N] tokens, with bounds.
        most: largest upper bound; the authors' code has the dual clip's number, but 10 at least.
        dual_clip: see `clipped_surrogate`.
    """
    probability = table.proximal_logp.detach().exp()
    low = (1 + (1 - 4 * (1 - table.low) / probability).clamp_min(0.0).sqrt()) / 2
    high = (1 + (1 + 4 * (table.high - 1) / probability).sqrt()) / 2
    return clipped_surrogate(table.ratio, table.advantage, low, high.clamp_max(most), dual_clip)
