"""P3O: the effective sample size of the update caps the ratios ("Trust the batch", arXiv 2605.12380)."""

from __future__ import annotations

from torch import Tensor

from bapo_lightning.objectives.divergence import k3
from bapo_lightning.objectives.sequences import token_mean
from bapo_lightning.objectives.token_table import TokenTable


def effective_sample_size(table: TokenTable) -> Tensor:
    """Returns (mean r)^2 / mean r^2 over all tokens of the update, 0-dim in (0, 1].

    The authors' code takes it of each micro-batch, so that it depends on the split; here it does not.

    Args:
        table: of the whole update, [N].
    """
    return token_mean(table.ratio, table).square() / token_mean(table.ratio.square(), table)


def p3o(table: TokenTable) -> Tensor:
    """Returns sg(min(r, ESS)) A log pi - (1 - ESS) KL per token, [N], where KL is the k3 estimate of
    KL(pi_behaviour || pi); there are no bounds and no knobs.

    Args:
        table: of [N] tokens; its statistic is the effective sample size.
    """
    weight = table.ratio.detach().minimum(table.statistic)
    return weight * table.advantage * table.log_ratio - (1 - table.statistic) * k3(table.log_ratio)
