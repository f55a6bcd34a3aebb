"""Pictures of a study."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes

from bapo_lightning.report import style
from bapo_lightning.simulation.study import SPEED, CellResult, Study

_BARS = 0.8  # of the room between two groups of bars


def draw(study: Study, path: Path) -> Path:
    """Draws throughput, idle shares, ages, waste and what staleness brings, in six panels."""
    figure = style.new_figure(13.5, 8.4)
    panels = figure.subplots(2, 3)
    _throughput(panels[0, 0], study)
    _idle(panels[0, 1], study)
    _gain(panels[0, 2], study)
    _ages(panels[1, 0], study)
    _waste(panels[1, 1], study)
    _stale(panels[1, 2], study)
    return style.save_png(figure, path)


def _throughput(axes: Axes, study: Study) -> None:
    """Tokens a second over the split, the best pass length of each bound."""
    style.style_axes(axes, "Throughput", "GPUs that train", "response tokens a second")
    bounds = sorted({result.cell.max_age for result in study.overlapping})
    for bound, colour in zip(bounds, style.shades(style.BLUE, len(bounds)), strict=True):
        own = [result for result in study.overlapping if result.cell.max_age == bound]
        line = [max(found, key=SPEED) for found in _by_split(own)]
        places = [result.cell.trainer_gpus for result in line]
        axes.plot(places, [*map(SPEED, line)], "o-", color=colour, ms=4, label=f"max_age {bound}")
    if study.turns is not None:
        axes.axhline(study.turns.speed, color=style.VERMILLION, ls="--", label="in turns on all GPUs")
    axes.set_ylim(bottom=0)
    style.draw_legend(axes)


def _idle(axes: Axes, study: Study) -> None:
    """Shares of time over the split, at the best bound and pass length."""
    style.style_axes(axes, f"Idle, {_at(study.best)}", "GPUs that train", "share of the time")
    line = _along_split(study)
    places = [result.cell.trainer_gpus for result in line]
    curves: list[tuple[str, str, Callable[[CellResult], float]]] = [
        ("trainer waits", style.VERMILLION, lambda result: result.outcome.trainer_waits),
        ("fleet idle", style.BLUE, lambda result: result.outcome.fleet_idle),
        ("of it: no pass runs", style.GREEN, lambda result: result.outcome.fleet_waits),
        ("all GPUs", style.BLACK, lambda result: result.idle),
    ]
    for label, colour, value in curves:
        axes.plot(places, [value(result) for result in line], "o-", color=colour, ms=4, label=label)
    axes.set_ylim(0, 1)
    style.draw_legend(axes)


def _gain(axes: Axes, study: Study) -> None:
    """Throughput of the best split within each bound."""
    style.style_axes(axes, "What staleness brings", "max_age, updates", "response tokens a second")
    places = range(len(study.by_age))
    speeds = [result.speed for result in study.by_age.values()]
    colours = [style.BLUE if age <= study.paying_age else style.FAINT for age in study.by_age]
    axes.bar(places, speeds, color=colours, width=_BARS)
    axes.set_xticks(list(places), [str(age) for age in study.by_age])
    for place, (speed, before) in enumerate(zip(speeds[1:], speeds, strict=False), 1):
        axes.annotate(f"{speed / before - 1:+.0%}", (place, speed), ha="center", va="bottom", fontsize=8)
    axes.set_ylim(0, 1.12 * max(speeds))


def _stale(axes: Axes, study: Study) -> None:
    """Share of the tokens of these that training in turns would not have had so old."""
    style.style_axes(axes, "What it costs", "max_age, updates", "share of trained tokens")
    results, updates = list(study.by_age.values()), min(study.by_age) + 1
    places = range(len(results))
    stale = [result.outcome.older_than(updates - 1) for result in results]
    labels = [f"older than {updates - 1} updates", "sampled in vain"]
    for shift, values, colour, label in zip(
        (-0.5, 0.5), (stale, [r.outcome.wasted for r in results]), (style.BLUE, style.VERMILLION), labels,
        strict=True,
    ):  # fmt: skip
        axes.bar([p + shift * _BARS / 2 for p in places], values, _BARS / 2, color=colour, label=label)
    axes.set_xticks(list(places), [str(age) for age in study.by_age])
    axes.set_ylim(0, 1.05)
    style.draw_legend(axes)


def _ages(axes: Axes, study: Study) -> None:
    """Ages of trained tokens for each bound, at the best split and pass length."""
    style.style_axes(
        axes, f"Ages, {_split(study.best)}", "age of a token, updates", "share of trained tokens"
    )
    best = study.best.cell
    same = [
        result
        for result in study.overlapping
        if (result.cell.trainer_gpus, result.cell.partial_tokens) == (best.trainer_gpus, best.partial_tokens)
    ]
    same.sort(key=lambda result: result.cell.max_age)
    for result, colour in zip(same, style.shades(style.BLUE, len(same)), strict=True):
        shares = result.outcome.ages
        ages = range(max(shares) + 2)
        values = [shares.get(age, 0.0) for age in ages]
        axes.step(ages, values, where="mid", color=colour, label=f"max_age {result.cell.max_age}")
    axes.set_ylim(bottom=0)
    style.draw_legend(axes)


def _waste(axes: Axes, study: Study) -> None:
    """Throughput of each pass length within each bound, at the best split."""
    style.style_axes(axes, f"Tokens of a pass, {_split(study.best)}", "max_age, updates", "tokens a second")
    own = [result for result in study.overlapping if result.cell.trainer_gpus == study.best.cell.trainer_gpus]
    kinds = list(dict.fromkeys(result.cell.partial_tokens for result in own))
    for kind, colour in zip(kinds, style.shades(style.GREEN, len(kinds)), strict=True):
        line = sorted((r for r in own if r.cell.partial_tokens == kind), key=lambda r: r.cell.max_age)
        label = "whole responses" if kind is None else f"{kind:,} a pass"
        axes.plot([r.cell.max_age for r in line], [*map(SPEED, line)], "o-", color=colour, ms=4, label=label)
    axes.set_ylim(bottom=0)
    style.draw_legend(axes)


def _along_split(study: Study) -> list[CellResult]:
    best = study.best.cell
    found = [
        result
        for result in study.overlapping
        if (result.cell.max_age, result.cell.partial_tokens) == (best.max_age, best.partial_tokens)
    ]
    return sorted(found, key=lambda result: result.cell.trainer_gpus)


def _by_split(results: Sequence[CellResult]) -> list[list[CellResult]]:
    splits = sorted({result.cell.trainer_gpus for result in results})
    return [[result for result in results if result.cell.trainer_gpus == split] for split in splits]


def _at(result: CellResult) -> str:
    tokens = result.cell.partial_tokens
    return f"max_age {result.cell.max_age}" + ("" if tokens is None else f", {tokens:,} a pass")


def _split(result: CellResult) -> str:
    return f"{result.cell.trainer_gpus} + {result.cell.fleet_gpus} GPUs"
