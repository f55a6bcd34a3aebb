"""Clipping bounds of an update, their effect on the policy gradient, and a forecast of their search."""

from __future__ import annotations

import math

import torch

from bapo_lightning.callbacks.monitors.monitor import Metrics, Monitor, MonitoredUpdate
from bapo_lightning.modules.bound_rules import AdaptiveBounds
from bapo_lightning.objectives.bounds import contributions, positive_contribution, positive_shares
from bapo_lightning.objectives.token_table import TokenTable, needed_by
from bapo_lightning.system.printable import say


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


CLOSE = 0.1  # of the target: one minibatch cannot distinguish closer values from it


class SearchForecast(Monitor):
    """Prints one line after the first update of a run whose bounds are searched. Emits nothing."""

    needs = needed_by(contributions)

    def measure(self, update: MonitoredUpdate) -> Metrics:
        """Prints the line."""
        if update.index == 0 and isinstance(update.module.bound_rule, AdaptiveBounds):
            say(forecast(update.module.bound_rule, update.tokens))
        self.needs = frozenset()
        return {}


def forecast(rule: AdaptiveBounds, tokens: TokenTable) -> str:
    """Compares the positive contribution without any clipping, in the unit of the rule's measure, with the
    target; the search finds the same at the start of its path while ratios are near 1.
    """
    no_clipping = tokens.ratio.new_zeros(1), tokens.ratio.new_full((1,), torch.inf)
    curves = contributions(tokens, rule.weight, *no_clipping)
    natural, target = float(positive_contribution(*curves, rule.measure)), rule.target
    start, end = (f"[{low:.2f}, {high:.2f}]" for low, high in rule.ends_of_path)
    if math.isnan(natural):
        return "search for bounds: no sample of the first minibatch has an advantage; no forecast yet"
    known = f"natural {rule.measure} of positive tokens about {natural:.2f}, target {target:g}"
    said = f"search for bounds: {known}"
    if abs(natural - target) < CLOSE * target:
        return f"{said}: it will move between {start} and {end}"
    if natural > target:
        return f"{said}: it will usually stay at {start}"
    return f"{said}: it will usually run to its end, {end}"
