"""FlowRL: fits the policy to a distribution of rewards (arXiv 2509.15207)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from bapo_lightning.objectives.sequences import mean_over_sequence, sequence_sum
from bapo_lightning.objectives.token_table import TokenTable
from bapo_lightning.system.values import PositiveFactor


@dataclass(frozen=True)
class FlowRL:
    """Objective (table) -> -w (log Z + mean log pi - beta A - mean log pi_ref)^2 per token, [N], with means
    over the response and w = sg(clip(product of r over the response, low, high)).

    It is the same for all tokens of a response, so that a mean over its tokens is the objective of the
    response. It is largest if pi is pi_ref exp(beta A) / Z, each a geometric mean over tokens, and has a
    gradient even if A is 0. Gradients flow through log pi and log Z.

    The paper clips w; the authors' code computes the clipped product but weighs by the unclipped one, which
    amounts to no bounds. beta is 15 in the paper.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"reference_logp", "log_z"})
    beta: PositiveFactor = 15.0

    def __call__(self, table: TokenTable) -> Tensor:
        """Returns the objective of each token, [N]."""
        logp = table.log_ratio + table.proximal_logp
        gap = table["log_z"] + mean_over_sequence(
            logp - self.beta * table.advantage - table["reference_logp"], table
        )
        weight = sequence_sum(table.log_ratio, table).exp().clamp(table.low, table.high).detach()
        return -weight * gap.square()
