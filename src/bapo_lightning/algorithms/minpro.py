"""MinPRO: weighs every token by its ratio and the least ratio before it (arXiv 2601.22718)."""

from __future__ import annotations

from torch import Tensor

from bapo_lightning.objectives.sequences import least_before
from bapo_lightning.objectives.token_table import TokenTable


def minpro(table: TokenTable) -> Tensor:
    """Returns sg(r_t min(r_1, .., r_{t-1})) A log pi per token, [N], where the first token weighs r_1.

    The least ratio stands for the product of all before the token, whose range grows with t. log r stands for
    log pi: they differ by a constant. A row of several tokens has the weight of its last token.
    """
    ratio = table.ratio.detach()
    return ratio * least_before(ratio, table, 1.0) * table.advantage * table.log_ratio
