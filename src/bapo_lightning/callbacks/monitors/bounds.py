"""Clipping bounds of an update, and their effect on the policy gradient."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bapo_lightning.callbacks.monitors.monitor import Metrics, Monitor, Update
from bapo_lightning.modules.contributions import positive_shares
from bapo_lightning.objectives.token_table import needed_by


class ClipBoundsMonitor(Monitor):
    """Emits `bapo/clip_low`, `bapo/clip_high` (ratios; their mean when every micro-batch has its own bounds)
    and `bapo/target_met` (share of the update's searches that reached their target; undefined where nothing
    was searched, since bounds are fixed or there was nothing to balance).
    """

    needs = frozenset[str]()

    def measure(self, update: Update) -> Metrics:
        """Returns the metrics of one update."""
        searched = ~torch.stack([search.value for search in update.searches]).isnan()
        met = torch.stack([search.met for search in update.searches]) & searched
        return {
            "bapo/clip_low": update.low,
            "bapo/clip_high": update.high,
            "bapo/target_met": met.sum() / searched.sum(),
        }


@dataclass(eq=False)
class ContributionMonitor(Monitor):
    """Emits `bapo/positive_share` (positive tokens' share of the gradient at the bounds used),
    `bapo/positive_share_unclipped` (the same without clipping) and `bapo/positive_token_fraction` (share of
    the tokens with a nonzero advantage).

    Contributions are always of the `gradient` kind, whichever the bound rule searches by, so that algorithms
    can be compared.
    """

    needs = needed_by(positive_shares)

    def measure(self, update: Update) -> Metrics:
        """Returns the metrics of one update."""
        tokens = update.tokens
        share, unclipped = positive_shares(tokens, update.module.bound_rule.weight)
        num_positive, num_negative = (tokens.advantage > 0).sum(), (tokens.advantage < 0).sum()
        return {
            "bapo/positive_share": share,
            "bapo/positive_share_unclipped": unclipped,
            "bapo/positive_token_fraction": num_positive / (num_positive + num_negative),
        }
