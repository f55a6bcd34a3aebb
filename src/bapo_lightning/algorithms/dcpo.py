"""DCPO (arXiv 2509.02333): dynamic clipping, and advantages smoothed over the visits of a problem."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bapo_lightning.objectives.advantages.group import LEAST_DEVIATION, check_group
from bapo_lightning.objectives.advantages.reward_batch import RewardBatch
from bapo_lightning.objectives.surrogate import DualClip, clipped_surrogate
from bapo_lightning.objectives.token_table import TokenTable


def dcpo_clip(table: TokenTable, most: DualClip = 10.0, dual_clip: DualClip | None = None) -> Tensor:
    """Returns min(r A, clip(r, lo, hi) A) per token, [N], with bounds that depend on the token's probability
    q under the proximal policy:

        lo = (1 + sqrt(max(0, 1 - 4 eps_low / q))) / 2        eps_low = 1 - low
        hi = (1 + sqrt(1 + 4 eps_high / q)) / 2               eps_high = high - 1,  hi <= most

    which keeps |p - q| r within eps. A token of q <= 4 eps_low may fall to half its probability. The authors'
    code uses the dual clip's number for `most`, but at least 10.
    """
    probability = table.proximal_logp.detach().exp()
    low = (1 + (1 - 4 * (1 - table.low) / probability).clamp_min(0.0).sqrt()) / 2
    high = (1 + (1 + 4 * (table.high - 1) / probability).sqrt()) / 2
    return clipped_surrogate(table.ratio, table.advantage, low, high.clamp_max(most), dual_clip)


class SmoothAdvantages:
    """Smooth advantage standardisation (SAS). Remembers for each problem the number of its visits, and the
    mean and deviation of all its rewards so far.

    With z_new and z_all, the rewards standardised by the group alone and by all groups of the problem, the
    i-th included: A is z_all / i + (1 - 1/i) z_new or z_new / i + (1 - 1/i) z_all, whichever is smaller in
    magnitude. A deviation below 1e-8 gives a z of zero; in the authors' code only a deviation of 0 does.
    Groups of equal rewards have advantages once other groups of their problem differed. As in their code,
    deviations are unbiased per group, and pooled with equal weights.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float, float]] = {}  # visits, mean, variance

    def __call__(self, batch: RewardBatch) -> Tensor:
        """Returns the advantages of P groups, [P, G], and remembers the new ones.

        A group from the reuse buffer is standardised with the remembered values and not counted again.

        Raises:
            ValueError: G is 1.
        """
        check_group(batch.rewards, "a deviation")
        rows = zip(batch.problems, batch.rewards.double(), batch.is_new, strict=True)
        return torch.stack([self._advantages(*row) for row in rows]).to(batch.rewards.dtype)

    def state_dict(self) -> dict[str, Any]:
        """Returns the memory."""
        return {problem: list(values) for problem, values in self._seen.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores it."""
        self._seen = {problem: (int(n), mean, variance) for problem, (n, mean, variance) in state.items()}

    def _advantages(self, problem: str, rewards: Tensor, is_new: bool) -> Tensor:
        mean, variance = float(rewards.mean()), float(rewards.var())
        if is_new or problem not in self._seen:
            visits, past_mean, past_variance = self._seen.get(problem, (0, mean, variance))
            # For groups with equal weights: the mean of their variances, and the variance of their means.
            share = 1 / (visits + 1)
            between = share * (1 - share) * (mean - past_mean) ** 2
            pooled = (1 - share) * past_variance + share * variance + between
            self._seen[problem] = visits + 1, past_mean + share * (mean - past_mean), pooled
        visits, all_mean, all_variance = self._seen[problem]
        new, whole = _standardised(rewards, mean, variance), _standardised(rewards, all_mean, all_variance)
        first, second = (new + (whole - new) / visits, whole + (new - whole) / visits)
        return torch.where(first.abs() < second.abs(), first, second)


def _standardised(rewards: Tensor, mean: float, variance: float) -> Tensor:
    deviation = variance**0.5
    return (rewards - mean) / deviation if deviation >= LEAST_DEVIATION else torch.zeros_like(rewards)
