"""TIC-GRPO: GRPO with one ratio for the whole response, capped from above alone (arXiv 2508.02833)."""

from __future__ import annotations

from math import log

from torch import Tensor

from bapo_lightning.objectives.corrections.tokens import High
from bapo_lightning.objectives.sequences import sequence_sum
from bapo_lightning.objectives.token_table import TokenTable


def tic_grpo(table: TokenTable, high: High = 1.28) -> Tensor:
    """Returns min(s, high) A per token, [N], where s = pi(y) / pi_behaviour(y) of the response y.

    It is the same for all tokens of a response, so that a mean over its tokens is the objective of the
    response; beyond `high` it has no gradient.
    """
    return sequence_sum(table.log_ratio, table).clamp_max(log(high)).exp() * table.advantage
