"""Clipping bounds of an update, and their effect on the policy gradient."""

from __future__ import annotations

import torch

from bapo_lightning.callbacks.monitors.monitor import Metrics, Monitor, MonitoredUpdate
from bapo_lightning.modules.contributions import positive_shares
from bapo_lightning.objectives.token_table import needed_by


class ClipBoundsMonitor(Monitor):
    """Emits `bapo/clip_low`, `bapo/clip_high` (means over searches) and `bapo/target_met` (share of searches
    that reached their target; undefined if nothing was searched).
    """

    needs = frozenset[str]()

    def measure(self, update: MonitoredUpdate) -> Metrics:
        """Metrics of one update."""
        searched = ~torch.stack([search.value for search in update.searches]).isnan()
        met = torch.stack([search.met for search in update.searches]) & searched
        return {
            "bapo/clip_low": torch.stack([search.low for search in update.searches]).mean(),
            "bapo/clip_high": torch.stack([search.high for search in update.searches]).mean(),
            "bapo/target_met": met.sum() / searched.sum(),
        }


class ContributionMonitor(Monitor):
    """Emits `bapo/positive_share` of the gradient, the same share without clipping, and
    `bapo/positive_token_fraction` (of the tokens with a nonzero advantage).

    Contributions are of the `gradient` kind, whichever the bound rule searches by, so that algorithms can be
    compared.
    """

    needs = needed_by(positive_shares)

    def measure(self, update: MonitoredUpdate) -> Metrics:
        """Metrics of one update."""
        tokens = update.tokens
        share, unclipped = positive_shares(tokens, update.module.bound_rule.weight)
        num_positive, num_negative = (tokens.advantage > 0).sum(), (tokens.advantage < 0).sum()
        return {
            "bapo/positive_share": share,
            "bapo/positive_share_unclipped": unclipped,
            "bapo/positive_token_fraction": num_positive / (num_positive + num_negative),
        }
