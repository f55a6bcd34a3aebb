"""How far the trainer's policy is from the one that the engine sampled from, without gradient."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from bapo_lightning.objectives.sequences import mean_over_sequence, sequence_sum
from bapo_lightning.objectives.surrogate import LOG_RATIO_LIMIT, importance_ratio
from bapo_lightning.objectives.token_table import TokenTable

Level = Literal["product", "geometric"]


def engine_gap(table: TokenTable) -> Tensor:
    """Returns pi_proximal / pi_behaviour per token, [N], limited to +-20 nats, without gradient."""
    return importance_ratio(table.proximal_logp.detach(), table.behaviour_logp)


def response_gap(table: TokenTable, level: Level = "product") -> Tensor:
    """Returns pi_proximal / pi_behaviour of each token's whole response, [N], limited to +-20 nats: the
    product over its tokens, or their geometric mean.
    """
    log_gap = table.proximal_logp.detach() - table.behaviour_logp
    over = (sequence_sum if level == "product" else mean_over_sequence)(log_gap, table)
    return over.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def effective_sample_size(weight: Tensor) -> Tensor:
    """Returns (mean w)^2 / mean w^2, 0-dim: the share of tokens that would give the same variance if all had
    the same weight.

    It is 1 if all weights are equal and NaN if all are 0. Source: Kish (1965); verl's
    `rollout_is_eff_sample_size`.
    """
    return weight.mean().square() / weight.square().mean()
