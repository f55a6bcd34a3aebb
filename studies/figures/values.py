"""The numbers of a run that figures make claims about: one function for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean

from bapo_lightning.report.metrics import HELD_OUT, HIGH_RAISED, LOW_RAISED
from bapo_lightning.tools.comparison.runs import COLUMNS, Run, statistic_of

PREDICTED, MEASURED = "entropy_rule/predicted_delta", "entropy_rule/measured_delta"
LOSS_SHARE, TOKEN_SHARE = "bapo/positive_share", "bapo/positive_token_fraction"
CURVES = (
    *("train/reward", "policy/entropy", "train/grad_norm", "train/clip_fraction", LOSS_SHARE, TOKEN_SHARE),
    *("bapo/clip_high", "bapo/clip_low", HIGH_RAISED, LOW_RAISED, "bapo/target_met", "staleness/age_mean"),
    *(PREDICTED, MEASURED, HELD_OUT),
)
# Curves of a kind of figure besides its metrics.
DRAWN = {
    "bounds": ("bapo/clip_high", "bapo/clip_low"),
    "shares": (LOSS_SHARE, TOKEN_SHARE),
    "tokens": ("ratio",),  # with the other columns of `scatter.TOKENS`
    "entropy_rule": (PREDICTED, MEASURED),
}
RunsByVariant = Mapping[str, Sequence[Run]]


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rank correlation, in [-1, 1], ties at their mean rank; None with fewer than 3 pairs or where
    one side does not vary.
    """
    from scipy.stats import spearmanr

    if len(first) < 3 or len(set(first)) == 1 or len(set(second)) == 1:
        return None
    return float(spearmanr(first, second).statistic)


def rule_pairs(run: Run) -> list[tuple[float, float]]:
    """(predicted, measured) entropy change in nats of every update in which both are known."""
    predicted, measured = (dict(zip(*run.curves[name], strict=True)) for name in (PREDICTED, MEASURED))
    return [(predicted[step], measured[step]) for step in sorted(predicted.keys() & measured.keys())]


def _mean(name: str, part: float = 1.0, negative: bool = False) -> Callable[[Run], float | None]:
    """Mean of a metric over the first `part` of its updates; with `negative` 1 minus that mean."""

    def mean(run: Run) -> float | None:
        values = run.curves[name][1]
        if not values:
            return None
        average = fmean(values[: max(1, round(part * len(values)))])
        return 1 - average if negative else average

    return mean


def _token_correlation(first: str, second: str) -> Callable[[Run], float | None]:
    def correlation(run: Run) -> float | None:
        if run.tokens is None:
            return None
        distances = [abs(math.log(ratio)) if ratio > 0 else math.inf for ratio in run.tokens["ratio"]]
        columns = {**run.tokens, "distance": distances}
        return rank_correlation(columns[first], columns[second])

    return correlation


def _entropy_rule_correlation(run: Run) -> float | None:
    pairs = rule_pairs(run)
    return rank_correlation([predicted for predicted, _ in pairs], [measured for _, measured in pairs])


def _entropy_rule_sign(run: Run) -> float | None:
    pairs = rule_pairs(run)
    return fmean((predicted > 0) == (measured > 0) for predicted, measured in pairs) if pairs else None


VALUES: dict[str, Callable[[Run], float | None]] = {
    **{
        column.key: partial(statistic_of, metric=column.metric, statistic=column.statistic)
        for column in COLUMNS
    },
    "clip_fraction": _mean("train/clip_fraction"),
    "clip_high_mean": _mean("bapo/clip_high"),
    "clip_low_mean": _mean("bapo/clip_low"),
    "negative_loss_share": _mean(LOSS_SHARE, negative=True),
    "negative_token_share": _mean(TOKEN_SHARE, negative=True),
    "negative_loss_share_first_half": _mean(LOSS_SHARE, 0.5, negative=True),
    "negative_token_share_first_half": _mean(TOKEN_SHARE, 0.5, negative=True),
    "distance_probability_correlation": _token_correlation("distance", "probability"),
    "probability_entropy_correlation": _token_correlation("probability", "entropy"),
    "entropy_rule_correlation": _entropy_rule_correlation,
    "entropy_rule_sign_agreement": _entropy_rule_sign,
}


def value_of(run: Run, name: str) -> float | None:
    """One of `VALUES` of a run, or the number that was kept of it; None if the run lacks it."""
    return run.summary["kept"].get(name) if "kept" in run.summary else VALUES[name](run)
