"""Shares of positive and negative tokens in the policy gradient."""

from __future__ import annotations

import torch

from bapo_lightning.callbacks.monitors.monitor import Metrics, Monitor, Update
from bapo_lightning.modules.bound_rules import ContributionWeight, contribution_weight
from bapo_lightning.objectives.bounds import contribution_curves, positive_contribution


class ContributionMonitor(Monitor):
    """Emits `bapo/positive_share` (positive tokens' share of the gradient at the bounds used),
    `bapo/positive_share_unclipped` (the same without clipping) and `bapo/positive_token_fraction` (share of
    the tokens with a nonzero advantage).

    Contributions are always of the `gradient` kind, whichever the bound rule searches by, so that algorithms
    can be compared.
    """

    def __init__(self, weight: ContributionWeight) -> None:
        """`weight` as for `bound_rules.contribution_weight`."""
        self.weight = weight

    def measure(self, update: Update) -> Metrics:
        """Returns the metrics of one update."""
        tokens = update.tokens
        lows = torch.stack([update.low.new_zeros(()), update.low])
        highs = torch.stack([update.high, update.high.new_full((), float("inf"))])
        mask = torch.ones_like(tokens.advantage, dtype=torch.bool)
        weight = contribution_weight(tokens, self.weight)
        positive, negative = contribution_curves(
            tokens.ratio, tokens.advantage, mask, weight, lows, highs, "gradient"
        )
        num_positive, num_negative = (tokens.advantage > 0).sum(), (tokens.advantage < 0).sum()
        return {
            "bapo/positive_share": positive_contribution(positive[0], negative[1], "share"),
            "bapo/positive_share_unclipped": positive_contribution(positive[1], negative[0], "share"),
            "bapo/positive_token_fraction": num_positive / (num_positive + num_negative),
        }
