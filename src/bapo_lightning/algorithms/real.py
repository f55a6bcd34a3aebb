"""REAL: separates right and wrong answers of a group as two classes (arXiv 2602.05630)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bapo_lightning.objectives.sequences import group_sum, mean_over_sequence, per_sequence
from bapo_lightning.objectives.token_table import TokenTable, reads
from bapo_lightning.system.values import Positive

CLASS_SUM = "log_class_sum"


def log_class_sum(table: TokenTable, temperature: Positive = 0.5) -> Tensor:
    """Returns log(1 + sum of exp(-+ s / temperature) over the responses of the token's class) - log(G) for
    its group of G responses, [N]; infinite if all responses of a group are right, or all wrong.
    """
    right = table.advantage > 0
    ones = torch.ones_like(table.advantage, dtype=torch.float64)
    signed = torch.where(right, -1.0, 1.0) * mean_over_sequence(table.log_ratio, table).double() / temperature
    known = [
        group_sum(per_sequence(values, table), table)
        for values in (ones, right * ones, signed.exp() * right, signed.exp() * ~right)
    ]
    size, num_right, sum_right, sum_wrong = known
    log_sum = torch.where(right, sum_right, sum_wrong).log1p() - size.log()
    mixed = (num_right > 0.5) & (num_right < size - 0.5)
    return torch.where(mixed, log_sum, torch.inf).to(table.advantage.dtype)


@dataclass(frozen=True)
class REAL:
    """Per token, [N], an objective with the gradient of

        -1/P sum_groups (log(1 + sum_right exp(-s / temperature)) + log(1 + sum_wrong exp(s / temperature)))

    of P groups, where s is the mean of log r over the response,

    under weights that make a mean over responses. Its value differs: the pull of a response, G exp(-+ s /
    temperature) / (1 + sum over its class) / temperature, is a constant, times s. Groups without both classes
    have no gradient, as in the authors' code and ms-swift, which need each group within a micro-batch.
    Answers with A > 0 are right, as in ms-swift; in the authors' code answers with a reward of 1 are.
    """

    temperature: Positive = 0.5

    @reads("log_ratio", "advantage", "sequence", "group", "count")
    def prepare(self, table: TokenTable) -> dict[str, Tensor]:
        """Returns `log_class_sum`."""
        return {CLASS_SUM: log_class_sum(table, self.temperature)}

    def __call__(self, table: TokenTable) -> Tensor:
        """Returns the objective of each token, [N]."""
        score = mean_over_sequence(table.log_ratio, table)
        sign = torch.where(table.advantage > 0, 1.0, -1.0)
        pull = (-sign * score.detach() / self.temperature - table[CLASS_SUM]).exp() / self.temperature
        return sign * pull * score
