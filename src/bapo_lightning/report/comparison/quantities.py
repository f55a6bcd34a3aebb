"""The metrics that are compared, the statistics of one run's curve, and the columns of the short table."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from statistics import fmean

from bapo_lightning.report.comparison.runs import HELD_OUT, Run
from bapo_lightning.report.run.summary import moving_average
from bapo_lightning.run_folder.record import finite


@dataclass(frozen=True)
class Quantity:
    """A metric that is compared."""

    metric: str  # its name in metrics.jsonl, or `HELD_OUT`
    title: str
    unit: str
    extreme: str  # best, lowest or largest: the name of the extreme of its moving average
    spiky: bool = False  # rare large values matter: the extreme is the largest value itself


@dataclass(frozen=True)
class Column:
    """A column of the table on the console and of study.csv."""

    key: str  # in study.csv, study.json and the claims of figures
    title: str  # short lines, so that all columns fit a terminal
    metric: str
    statistic: str


QUANTITIES = (
    Quantity("train/reward", "Training reward", "mean per sample", "best"),
    Quantity(HELD_OUT, "Held-out accuracy", "avg@k, mean over the sets", "best"),
    Quantity("policy/entropy", "Policy entropy", "nats per token", "lowest"),
    Quantity("bapo/positive_share", "Positive share of the gradient", "fraction", "lowest"),
    Quantity("train/grad_norm", "Gradient norm", "L2, before clipping", "largest", spiky=True),
    Quantity("train/clip_fraction", "Clipped tokens", "fraction", "largest"),
    Quantity("bapo/clip_high", "Upper bound", "importance ratio", "largest"),
    Quantity("bapo/clip_low", "Lower bound", "importance ratio", "largest"),
    Quantity("policy/approx_kl", "KL to the behaviour policy", "nats per token, k3", "largest"),
    Quantity("train/response_length", "Response length", "tokens", "largest"),
)
METRIC_NAMES = tuple(quantity.metric for quantity in QUANTITIES)
STATISTICS = {
    "final": "mean of the last tenth",
    "extreme": "best or most extreme moving average",
    "mean": "mean over the whole run",
}
COLUMNS = (
    Column("reward_last", "final\nreward", "train/reward", "final"),
    Column("reward_gain", "last -\nfirst\nreward", "train/reward", "gain"),
    # Dynamic sampling chooses the groups that training rewards are taken from; held-out accuracy compares.
    Column("accuracy_last", "held-\nout\navg@k", HELD_OUT, "last"),
    Column("entropy_last", "final\nentropy", "policy/entropy", "final"),
    Column("grad_norm_max", "max\ngrad.\nnorm", "train/grad_norm", "extreme"),
    Column("positive_share", "pos.\nshare", "bapo/positive_share", "mean"),
    Column("clip_high_raised_fraction", "bound\nraised", "bapo/clip_high", "raised"),
)
# Every (metric, statistic) that a comparison computes.
COMPARED = dict.fromkeys(
    [*product(METRIC_NAMES, STATISTICS), *((column.metric, column.statistic) for column in COLUMNS)]
)
_QUANTITY = {quantity.metric: quantity for quantity in QUANTITIES}


def statistic_of(run: Run, metric: str, statistic: str) -> float | None:
    """One number of a run; None where the metric was not recorded.

    Args:
        run: with the curve of the metric.
        metric: one of `METRIC_NAMES`.
        statistic: one of `STATISTICS`, `gain` (last minus first tenth), `last` (the last value), or `raised`
            (share of the updates in which the upper bound lay above its start).
    """
    values = run.curves[metric][1]
    if not values:
        return None
    averages = moving_average(values, max(1, len(values) // 10))
    match statistic:
        case "final":
            return averages[-1]
        case "gain":
            return averages[-1] - averages[0]
        case "mean":
            return fmean(values)
        case "last":
            return values[-1]
        case "raised":
            return finite(run.summary["bounds"]["clip_high_raised_fraction"])
    quantity = _QUANTITY[metric]
    if quantity.spiky:
        return max(values)
    return min(averages) if quantity.extreme == "lowest" else max(averages)
