"""Sources of the difference between engine and trainer: age, numerics, old weights, another distribution.

    curves -> Point of each update and bucket of ages -> Fit on age and time, in two clocks -> Staleness

A right engine differs by rounding at age 0, and by the policy's movement at larger ages. An engine with old
weights differs at age 0 as well, and more with each update since the fault, whatever age its tokens claim.
Another distribution (temperature, tokens) differs at age 0 by an amount that stays. With a learning rate of 0
nothing moves, so each difference is numerics or a fault (`debug=canary`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import fmean
from typing import Literal

import numpy as np

from bapo_lightning.report.intervals import Interval, t_quantile
from bapo_lightning.tools.doctor import curves as names
from bapo_lightning.tools.doctor.causes import GROWN, ONE_WAY, SEEN, UNTILTED, Facts, engine, series
from bapo_lightning.tools.doctor.curves import Curves

Kind = Literal["age", "numerics", "old weights", "distribution", "undecided"]
Clock = Literal["update", "rate"]  # unit of age and time: an update, or 1 of summed learning rates
STILL = 1e-12  # a smaller sum of learning rates moves no weight
LARGE = 1.0  # nats per token at age 0 that no precision explains, if the alarm has no limit
MOST_UPDATES = 1_000_000  # beyond them learning rates are not summed
MOST = 1e30  # nats, which stand for more
LEAST_CLUSTERS = 4  # rollout batches that an interval needs
UNSEEN = "few tokens are seen at age 0"
ELSE = "take make probe, or debug=canary regime=on_policy"


@dataclass(frozen=True)
class Point:
    """Mean difference of tokens of similar age in one update."""

    step: int  # update
    age: float  # updates since sampling
    difference: float  # nats per token, at least 0


@dataclass(frozen=True)
class Fit:
    """Difference as a sum of a part at age 0, of age and of time, in nats per token, with 95 % intervals."""

    clock: Clock
    age: Interval | None  # slope on the age, at the same time; None: all ages are equal
    time: Interval  # slope on the time of the update, at the same age
    fresh: Interval  # at age 0 and the mean time
    span: float  # from the first time to the last
    explained: float  # share of the variance

    @property
    def grows(self) -> bool:
        """Whether the difference at age 0 becomes a multiple of its first value, and not by chance."""
        half = self.time.mean * self.span / 2
        return self.time.mean > (self.time.half_width or math.inf) and (
            self.fresh.mean + half >= GROWN * (self.fresh.mean - half)
        )


@dataclass(frozen=True)
class Staleness:
    """Verdict on a run's differences of engine and trainer."""

    kind: Kind
    why: str
    since: int  # first update that is fitted
    mean: float  # difference of all tokens since then, nats per token
    fresh: float | None  # at age 0; None: few tokens had it
    fits: tuple[Fit, ...]


def staleness(curves: Curves, facts: Facts) -> Staleness | None:
    """Returns the verdict; None if no difference of engine and trainer is recorded."""
    clamped = [replace(point, difference=min(max(point.difference, 0.0), MOST)) for point in points(curves)]
    if not clamped:
        return None
    fault = next(iter(engine(curves, facts)), None)
    usable = [point for point in clamped if fault is None or point.step - point.age >= fault.since] or clamped
    travelled = summed_rates(curves)
    is_still = bool(travelled) and travelled[-1] < STILL
    clocks: tuple[Clock, ...] = ("update", "rate") if travelled and not is_still else ("update",)
    fits = tuple(fitted for clock in clocks if (fitted := fit(usable, clock, travelled)))
    limit = facts.detectors["mismatch"].above
    mean, level = fmean(point.difference for point in usable), _level(usable, is_still)
    if level is None:
        kind, why = _extrapolated(fits[0] if fits else None, mean, limit)
    elif fault is not None or level > (limit or LARGE):
        kind, why = _of_fault(tilt(curves, usable[0].step), fits, is_still)
    elif is_still or mean <= 2 * level:
        kind, why = "numerics", "age adds little to the difference at age 0, which is small"
    else:
        kind, why = "age", f"the policy's movement since sampling is {1 - level / mean:.0%} of the difference"
    return Staleness(kind, why, usable[0].step, mean, level, fits)


def _of_fault(tilted: float, fits: Sequence[Fit], is_still: bool) -> tuple[Kind, str]:
    """Kind of a difference at age 0, from the part of it in one direction, and from its growth with time."""
    grows = not is_still and bool(fits) and fits[0].grows
    if not fits and not is_still and not tilted > ONE_WAY:
        return "undecided", "few rollout batches were seen since the fault; wait for more"
    if tilted < UNTILTED:
        return "distribution", "the difference at age 0 has no direction: log-probs of other tokens"
    if grows:
        return "old weights", "the difference at age 0 grows with each update since the fault"
    if tilted > ONE_WAY:
        return "old weights", "the difference at age 0 has one direction: samples of other weights"
    return "distribution", "the difference at age 0 stays: temperature, top-p or template"


def _level(usable: Sequence[Point], is_still: bool) -> float | None:
    """Mean difference at age 0, or at any age if nothing moves; None without it in most rollout batches."""
    fresh = [point for point in usable if is_still or point.age == 0]
    batches, seen = ({round(each.step - each.age) for each in some} for some in (usable, fresh))
    return fmean(each.difference for each in fresh) if 2 * len(seen) > len(batches) else None


def _extrapolated(fitted: Fit | None, mean: float, limit: float | None) -> tuple[Kind, str]:
    """Kind if tokens are older than 0 when they are first trained, so that the level at age 0 is a fit's."""
    width = fitted.fresh.half_width if fitted and fitted.age else None
    if fitted is None or fitted.age is None or width is None:
        return "undecided", f"{UNSEEN}, and ages vary too little for a fit; {ELSE}"
    if fitted.fresh.mean - width > (limit or math.inf):
        kind: Kind = "old weights" if fitted.grows else "distribution"
        return kind, f"{UNSEEN}, but the fit has a difference there"
    if fitted.fresh.mean + width < mean / 2:
        return "age", f"{UNSEEN}, and the fit has less than half of the difference there"
    return "undecided", f"{UNSEEN}, and the fit does not decide; {ELSE}"


def points(curves: Curves) -> list[Point]:
    """Points by age; the differences on fresh data, at age 0, if a log has no ages."""
    oldest = dict(zip(*series(curves, names.OLDEST), strict=True))
    mean_age = dict(zip(*series(curves, names.AGE), strict=True))
    buckets: dict[int, list[tuple[int, float, float]]] = {}
    for name, (least, most) in names.AGED.items():
        for step, value in zip(*series(curves, name), strict=True):
            buckets.setdefault(step, []).append((least, most, value))
    if not buckets:
        return [Point(step, 0.0, value) for step, value in zip(*series(curves, names.MISMATCH), strict=True)]
    merged = []
    for step, parts in sorted(buckets.items()):
        for least, most, value in parts:
            middle = (least + max(least, min(most, oldest.get(step, least)))) / 2
            merged.append(Point(step, mean_age.get(step, middle) if len(parts) == 1 else middle, value))
    return merged


def summed_rates(curves: Curves) -> list[float]:
    """Summed learning rates before each update and after the last; empty without them, or if not finite."""
    steps, rates = series(curves, names.RATE)
    if steps and steps[-1] >= MOST_UPDATES:
        return []
    known = dict(zip(steps, rates, strict=True))
    last, each = rates[0] if rates else 0.0, list[float]()
    for step in range(steps[-1] + 1 if steps else 0):
        last = known.get(step, last)
        each.append(last)
    total = [0.0, *accumulate(each)]
    return total if each and math.isfinite(total[-1]) else []


def tilt(curves: Curves, since: int) -> float:
    """Part of the difference on fresh data in one direction, from an update on; NaN if it is not recorded."""
    signed = dict(zip(*series(curves, names.BIAS), strict=True))
    fresh = zip(*series(curves, names.MISMATCH), strict=True)
    shares = [
        abs(signed[step]) / value
        for step, value in fresh
        if step >= since and step in signed and value > SEEN
    ]
    return fmean(shares) if shares else math.nan


def fit(data: Sequence[Point], clock: Clock, travelled: Sequence[float]) -> Fit | None:
    """Returns least squares of the difference on age and time; None if points do not determine them.

    Errors are clustered (Liang and Zeger 1986): tokens of a rollout batch err together.

    Args:
        data: points.
        clock: unit of age and time.
        travelled: summed learning rate before each update, [updates + 1]; read if it is the clock.
    """
    end = np.array([point.step for point in data], float)
    start = end - [point.age for point in data]
    clusters = np.unique(np.round(start), return_inverse=True)[1]
    if clock == "rate":
        at = np.arange(len(travelled))
        start, end = np.interp(start, at, travelled), np.interp(end, at, travelled)
    has_ages = np.ptp(end - start) > 0
    columns = [np.ones_like(end), end - end.mean(), *([end - start] if has_ages else [])]
    scale = np.array([np.abs(column).max() for column in columns])
    if (count := int(clusters.max()) + 1) < LEAST_CLUSTERS or not scale.all():
        return None
    table, difference = np.stack(columns, 1) / scale, np.array([point.difference for point in data])
    unit = difference.max() or 1.0
    difference /= unit
    if len(data) <= len(columns) or np.linalg.matrix_rank(table) < len(columns):
        return None
    bread = np.linalg.inv(table.T @ table)
    solution = bread @ table.T @ difference
    rest = difference - table @ solution
    sums = np.zeros((count, len(columns)))
    np.add.at(sums, clusters, table * rest[:, None])
    small = count / (count - 1) * (len(data) - 1) / (len(data) - len(columns))  # correction for few clusters
    width = t_quantile(count - 1) * np.sqrt(small * np.diag(bread @ sums.T @ sums @ bread))
    fresh, time, *age = [
        Interval(float(each), float(half), count)
        for each, half in zip(solution / scale * unit, width / scale * unit, strict=True)
    ]
    total = np.square(difference - difference.mean()).sum()
    explained = float(1 - rest @ rest / total) if total else 0.0
    return Fit(clock, age[0] if age else None, time, fresh, float(np.ptp(end)), explained)
