"""The curves of one run as numbers for `plot.js`, over updates, samples, tokens or minutes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, cycle
from typing import Any

from bapo_lightning.report import style
from bapo_lightning.report.run.curves import HELD_OUT, series
from bapo_lightning.report.run.plots import target_share
from bapo_lightning.report.run.summary import TIME_PARTS
from bapo_lightning.run_folder.record import Row, RunRecord, finite

_MOST_POINTS = 400  # of a curve
_SMOOTHED = 15  # a curve is averaged over so many parts of the run
_SHARE = "turns/positive_share_"  # and the number of the turn
_DASHES = ("", "8 3 2 3", "5 3", "2 3")  # of turns, one after another


@dataclass(frozen=True)
class Line:
    """One metric in a chart."""

    metric: str
    label: str
    colour: str
    dash: str = ""
    marks: bool = False  # every update as a dot, and no average, where values are few and far apart
    smooth: bool = True


@dataclass(frozen=True)
class Chart:
    """One panel."""

    title: str
    lines: tuple[Line, ...]
    log: bool = False
    has_target: bool = False  # whether the search's target is drawn across


def charts_of(algorithm: str) -> tuple[Chart, ...]:
    """The panels of the page; the main line of each has the algorithm's colour."""
    colour = style.algorithm_colour(algorithm)
    positive, negative = style.sign_colours(algorithm)
    return (
        Chart("Reward", (
            Line("train/reward", "in training", colour),
            Line(HELD_OUT, "held out", style.NEUTRAL, "5 3", smooth=False),
        )),
        Chart("Policy entropy, nats", (Line("policy/entropy", "entropy", colour),)),
        Chart("Positive share of the gradient", (
            Line("bapo/positive_share", "at the chosen bounds", colour),
            Line("bapo/positive_share_unclipped", "without clipping", style.NEUTRAL, "5 3"),
        ), has_target=True),
        Chart("Clipping bounds, every update", (
            Line("bapo/clip_high", "upper", positive, marks=True),
            Line("bapo/clip_low", "lower", negative, marks=True),
        )),
        Chart("Gradient norm", (Line("train/grad_norm", "gradient norm", colour, smooth=False),), log=True),
        Chart("Clipped tokens", (
            Line("train/clip_fraction_positive", "of positive tokens", positive),
            Line("train/clip_fraction_negative", "of negative tokens", negative, "8 3 2 3"),
        )),
        Chart("Response length, tokens", (
            Line("train/response_length_positive", "positive", positive),
            Line("train/response_length_negative", "negative", negative, "8 3 2 3"),
        )),
        Chart("Age of tokens, updates", (
            Line("staleness/age_mean", "mean", colour),
            Line("staleness/age_max", "largest", style.NEUTRAL, "5 3", smooth=False),
        )),
        Chart("Engine against trainer, nats per token", (
            Line("mismatch/abs_logp_diff_mean", "mean difference", colour, smooth=False),
        ), log=True),
    )  # fmt: skip


def turn_charts(algorithm: str, record: RunRecord) -> tuple[Chart, ...]:
    """The panels of a run whose policy an environment answers; none of any other."""
    recorded = {name for row in record.rows for name in row if name.startswith("turns/")}
    if not recorded:
        return ()
    colour = style.algorithm_colour(algorithm)
    light, dark = style.shades(colour, 2)
    shares = sorted(name for name in recorded if name.startswith(_SHARE))
    looks = zip(shares, style.shades(colour, len(shares)), cycle(_DASHES), strict=False)
    return (
        Chart("Turns and calls of a conversation", (
            Line("turns/mean", "turns", colour),
            Line("turns/max", "most turns", style.NEUTRAL, "5 3", smooth=False),
            Line("turns/calls_mean", "calls", dark, "8 3 2 3"),
        )),
        Chart("Faults in conversations, shares", (
            Line("turns/error_share", "failed calls", light),
            Line("turns/void_share", "void turn", dark, "8 3 2 3"),
            Line("turns/cut_share", "cut", style.NEUTRAL, "5 3"),
        )),
        Chart("Positive share, turn by turn", tuple(
            Line(name, f"turn {name.removeprefix(_SHARE)}", shade, dash) for name, shade, dash in looks
        ), has_target=True),
    )  # fmt: skip


def drawn(record: RunRecord) -> list[dict[str, Any]]:
    """Every chart of the run, as `plot.js` takes it; one without values says so."""
    places = _places(record.rows)
    algorithm = str(record.manifest.get("algorithm", ""))
    charts = (*charts_of(algorithm), *turn_charts(algorithm, record))
    return [_chart(chart, record, places, number) for number, chart in enumerate(charts)]


def _chart(
    chart: Chart, record: RunRecord, places: dict[str, dict[int, float]], number: int
) -> dict[str, Any]:
    curves = [
        _curve(chart, line, record, places) | {"index": f"{number}-{place}"}
        for place, line in enumerate(chart.lines)
    ]
    shown = [value for curve in curves for value in curve["mean"]]
    target = target_share(record.config) if chart.has_target and shown else None
    rules = [target[0]] if target is not None else []
    limits = _limits([*shown, *rules], chart.log)
    return {"title": chart.title, "unit": "log scale" if chart.log else "", "log": chart.log} | {
        "limits": limits, "curves": curves, "rules": rules
    }  # fmt: skip


def _curve(
    chart: Chart, line: Line, record: RunRecord, places: dict[str, dict[int, float]]
) -> dict[str, Any]:
    steps, values = series(record, line.metric)
    if chart.log:
        kept = [(step, value) for step, value in zip(steps, values, strict=True) if value > 0]
        steps, values = [step for step, _ in kept], [value for _, value in kept]
    if line.smooth and not line.marks:
        values = moving_average(values, max(1, len(values) // _SMOOTHED))
    every = max(1, math.ceil(len(steps) / _MOST_POINTS))
    steps, values = steps[::-every][::-1], values[::-every][::-1]
    known = {axis: found for axis, found in places.items() if found.keys() >= {*steps}}
    x = {axis: [found[step] for step in steps] for axis, found in known.items()}
    look = {"label": line.label, "colour": line.colour, "dash": line.dash, "marks": line.marks}
    return {**look, "x": x, "mean": [float(f"{value:.4g}") for value in values]}


def moving_average(values: Sequence[float], width: int) -> list[float]:
    """The mean of each value and up to `width` - 1 before it."""
    sums = [0.0, *accumulate(values)]
    starts = [max(0, end - width) for end in range(1, len(sums))]
    return [(sums[end] - sums[start]) / (end - start) for end, start in enumerate(starts, 1)]


def bound_choices(record: RunRecord) -> list[dict[str, Any]]:
    """How often the search chose which pair of bounds: {low, high, share}, the most frequent first.

    A mean of bounds describes nothing where the search jumps between its start and its end.
    """
    pairs: dict[tuple[float, float], int] = {}
    for row in record.rows:
        low, high = finite(row.get("bapo/clip_low")), finite(row.get("bapo/clip_high"))
        if low is not None and high is not None:
            pair = round(low, 2), round(high, 2)
            pairs[pair] = pairs.get(pair, 0) + 1
    total = sum(pairs.values())
    ordered = sorted(pairs.items(), key=lambda item: -item[1])
    return [{"low": low, "high": high, "share": count / total} for (low, high), count in ordered]


def phases(rows: Sequence[Row]) -> list[tuple[str, float]]:
    """(part, share of the time) of the updates so far, with what is left as `other`; empty without times."""
    total = sum(finite(row.get("time/step_seconds")) or 0.0 for row in rows)
    if not total:
        return []
    parts = [
        (part, sum(finite(row.get(f"time/{part}_seconds")) or 0.0 for row in rows) / total)
        for part in TIME_PARTS
    ]
    other = max(0.0, 1 - sum(share for _, share in parts))
    return [(part, share) for part, share in [*parts, ("other", other)] if share > 0]


def _places(rows: Sequence[Row]) -> dict[str, dict[int, float]]:
    """Axis -> update -> place on it."""
    seconds = accumulate(finite(row.get("time/step_seconds")) or 0.0 for row in rows)
    found: dict[str, dict[int, float]] = {"updates": {row["step"]: row["step"] + 1 for row in rows}}
    for axis in ("samples", "tokens"):
        counts = {row["step"]: finite(row.get(f"progress/{axis}")) for row in rows}
        found[axis] = {step: count for step, count in counts.items() if count is not None}
    found["minutes"] = {row["step"]: round(now / 60, 3) for row, now in zip(rows, seconds, strict=True)}
    return found


def _limits(values: Sequence[float], log: bool) -> tuple[float, float]:
    if not values:
        return 0.0, 1.0
    least, most = min(values), max(values)
    if log:
        return 0.7 * least, 1.4 * most
    room = 0.06 * ((most - least) or abs(most) or 1.0)
    return (max(0.0, least - room) if least >= 0 else least - room), most + room
