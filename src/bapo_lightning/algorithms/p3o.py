"""P3O: caps ratios at the effective sample size of the update ("Trust the batch", arXiv 2605.12380)."""

from __future__ import annotations

import torch
from torch import Tensor

from bapo_lightning.objectives.sequences import mean_over_tokens
from bapo_lightning.objectives.token_table import TokenTable, reads

LIMIT = 10.0  # nats, of log r in the divergence
SIZE = "sample_size"


class P3O:
    """sg(min(r, ESS)) A log pi - (1 - ESS) (log r + 1 / r - 1) per token, [N]; without bounds and
    knobs.

    log r stands for log pi in the first term: they differ by a constant. The second estimates
    KL(pi || pi_behaviour) as the authors' code does (FeynRL, `compute_kl_distance`): by k3 as if the tokens
    came from pi, though they came from pi_behaviour, and with 1 / r limited to exp(+-10). That code uses the
    sample size of each micro-batch; here it is the update's.
    """

    @reads("ratio", "count")
    def prepare(self, table: TokenTable) -> dict[str, Tensor]:
        """Returns ESS = (mean r)^2 / mean r^2 over all tokens of the update, 0-dim in (0, 1]."""
        mean = mean_over_tokens(table.ratio, table.count)
        return {SIZE: mean.square() / mean_over_tokens(table.ratio.square(), table.count)}

    def __call__(self, table: TokenTable) -> Tensor:
        """Returns the objective of each token, [N]."""
        weight = table.ratio.detach().minimum(table[SIZE])
        divergence = table.log_ratio + torch.expm1((-table.log_ratio).clamp(-LIMIT, LIMIT))
        return weight * table.advantage * table.log_ratio - (1 - table[SIZE]) * divergence
