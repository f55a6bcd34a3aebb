"""A study in words: the answer, tables, a page with pictures, and all numbers as files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path

from matplotlib.axes import Axes

from bapo_lightning.extras.simulation.study import SPEED, Cell, CellResult, StudiedRun, Study
from bapo_lightning.report import style
from bapo_lightning.report.markdown import markdown_table
from bapo_lightning.system.run_folder.text_file import write_csv, write_json, write_text

_BARS = 0.8  # of the room between two groups of bars


def draw(study: Study, path: Path) -> Path:
    """Draws throughput, idle shares, ages, waste and the gain from staleness, in six panels."""
    figure = style.new_figure(13.5, 8.4)
    panels = _throughput, _idle, _gain, _ages, _waste, _stale
    for panel, axes in zip(panels, figure.subplots(2, 3).flat, strict=True):
        panel(axes, study)
    return style.save_png(figure, path)


def _throughput(axes: Axes, study: Study) -> None:
    style.style_axes(axes, "Throughput", "GPUs that train", "response tokens a second")
    bounds = sorted({result.cell.max_age for result in study.overlapping})
    for bound, colour in zip(bounds, style.shades(style.BLUE, len(bounds)), strict=True):
        results = (result for result in study.overlapping if result.cell.max_age == bound)
        line = dict(sorted((each.cell.trainer_gpus, each.speed) for each in results))  # the fastest of each
        axes.plot([*line], [*line.values()], "o-", color=colour, ms=4, label=f"max_age {bound}")
    if study.turns is not None:
        axes.axhline(study.turns.speed, color=style.VERMILLION, ls="--", label="in turns on all GPUs")
    axes.set_ylim(bottom=0)
    style.draw_legend(axes)


def _idle(axes: Axes, study: Study) -> None:
    where = f"max_age {study.best.cell.max_age}, {study.best.cell.generation}"
    style.style_axes(axes, f"Idle, {where}", "GPUs that train", "share of the time")
    line = _like_best(study, "max_age", "generation")
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
    style.style_axes(axes, "What staleness brings", "max_age, updates", "response tokens a second")
    places = range(len(study.by_age))
    speeds = [result.speed for result in study.by_age.values()]
    colours = [style.BLUE if age <= study.paying_age else style.FAINT for age in study.by_age]
    axes.bar(places, speeds, color=colours, width=_BARS)
    axes.set_xticks([*places], [str(age) for age in study.by_age])
    for place, (speed, before) in enumerate(zip(speeds[1:], speeds, strict=False), 1):
        axes.annotate(f"{speed / before - 1:+.0%}", (place, speed), ha="center", va="bottom", fontsize=8)
    axes.set_ylim(0, 1.12 * max(speeds))


def _stale(axes: Axes, study: Study) -> None:
    style.style_axes(axes, "What it costs", "max_age, updates", "share of trained tokens")
    results, updates = list(study.by_age.values()), min(study.by_age) + 1
    places = range(len(results))
    shares = [result.outcome.ages.items() for result in results]
    stale = [sum(share for age, share in ages if age >= updates) for ages in shares]
    wasted = [result.outcome.wasted for result in results]
    for shift, values, colour, label in (
        (-0.5, stale, style.BLUE, f"older than {updates - 1} updates"),
        (0.5, wasted, style.VERMILLION, "sampled in vain"),
    ):
        axes.bar([p + shift * _BARS / 2 for p in places], values, _BARS / 2, color=colour, label=label)
    axes.set_xticks([*places], [str(age) for age in study.by_age])
    axes.set_ylim(0, 1.05)
    style.draw_legend(axes)


def _ages(axes: Axes, study: Study) -> None:
    title = f"Ages, {_split(study.best.cell)} GPUs"
    style.style_axes(axes, title, "age of a token, updates", "share of trained tokens")
    same = _like_best(study, "trainer_gpus", "generation")
    for result, colour in zip(same, style.shades(style.BLUE, len(same)), strict=True):
        shares = result.outcome.ages
        ages = range(max(shares) + 2)
        values = [shares.get(age, 0.0) for age in ages]
        axes.step(ages, values, where="mid", color=colour, label=f"max_age {result.cell.max_age}")
    axes.set_ylim(bottom=0)
    style.draw_legend(axes)


def _waste(axes: Axes, study: Study) -> None:
    title = f"Ways to generate, {_split(study.best.cell)} GPUs"
    style.style_axes(axes, title, "max_age, updates", "tokens a second")
    results = _like_best(study, "trainer_gpus")
    kinds = list(dict.fromkeys(result.cell.generation for result in results))
    for kind, colour in zip(kinds, style.shades(style.GREEN, len(kinds)), strict=True):
        line = [result for result in results if result.cell.generation == kind]
        axes.plot([r.cell.max_age for r in line], [*map(SPEED, line)], "o-", color=colour, ms=4, label=kind)
    axes.set_ylim(bottom=0)
    style.draw_legend(axes)


def _like_best(study: Study, *names: str) -> list[CellResult]:
    facts = attrgetter(*names)
    results = [result for result in study.overlapping if facts(result.cell) == facts(study.best.cell)]
    return sorted(results, key=lambda result: (result.cell.trainer_gpus, result.cell.max_age))


def _split(cell: Cell) -> str:
    return f"{cell.trainer_gpus} + {cell.fleet_gpus}"


HEADS = (
    "train + generate", "max_age", "generation", "tokens/s", "GPUs idle", "trainer waits", "fleet idle",
    "mean age", "in vain", "requests", "rho", "age at start", "law",
)  # fmt: skip


def answer(study: Study) -> str:
    """Returns the best split, its results, and the bound beyond which staleness does not pay."""
    best, cell, turns = study.best, study.best.cell, study.turns
    text = (
        f"Best split: {cell.trainer_gpus} of {cell.gpus} GPUs train and {cell.fleet_gpus} generate, with "
        f"max_age={cell.max_age} and {cell.generation}: {best.speed:,.0f} response tokens/s, GPUs "
        f"idle {best.idle:.0%} of the time."
    )
    if study.paying_age < max(study.by_age):
        text += f" A max_age above {study.paying_age} gains less than {study.least_gain:.0%}."
    else:
        text += (
            f" Throughput still grows by {study.least_gain:.0%} or more up to max_age={study.paying_age}, "
            "the largest that was tried."
        )
    if turns is not None:
        text += (
            f" Taking turns on all of them gives {turns.speed:,.0f} tokens/s at ages up to "
            f"{max(turns.outcome.ages)}: the split is {best.speed / turns.speed:.2f} times as fast."
        )
    return text


def law_line(study: Study) -> str:
    """Returns the staleness of the best setting, as simulated and by Applied Compute's formula."""
    result = study.best.outcome
    return (
        f"Mean age of trained responses at their start: {result.start_age:.2f} updates, by Applied Compute's "
        f"formula {result.law_age:.2f} ({result.requests:,.1f} requests at once, rho {result.rho:.2f}, tail "
        f"factor {result.tail:.2f}, queue {result.queue:.2f} batches); of their tokens {result.mean_age:.2f}."
    )


def console_table(study: Study) -> str:
    """Returns the best result within each bound, and those in turns, as aligned text."""
    rows = [list(HEADS), *map(_row, _visible_cells(study))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in rows
    )


def write_page(study: Study, world: StudiedRun, name: str, folder: Path) -> Path:
    """Writes index.md, simulate.png, cells.json and cells.csv into a folder; returns the page."""
    draw(study, folder / "simulate.png")
    results = [*study.results, *study.what_ifs]
    rows = [{**asdict(r.cell), "idle": r.idle, **asdict(r.outcome)} for r in results]
    unfit = [{**asdict(cell), "reason": reason} for cell, reason in study.unfit]
    write_json(folder / "cells.json", {"answer": answer(study), "cells": rows, "unfit": unfit})
    lines = [[*{**row, "ages": json.dumps(row["ages"])}.values()] for row in rows]
    write_csv(folder / "cells.csv", [*rows[0]], lines)
    return write_text(folder / "index.md", _page(study, world, name))


def _page(study: Study, world: StudiedRun, name: str) -> str:
    setting = world.setting
    parts = [
        f"# {name}, simulated: {world.hardware}",
        answer(study),
        law_line(study),
        f"{setting.groups_per_batch} problems x {setting.group_size} responses of "
        f"{setting.lengths.mean():,.0f} tokens on average (up to {setting.lengths.max():,}), "
        f"{setting.num_batches} rollout batches of which the first {world.num_skipped} do not count.",
        "![throughput, idle shares and ages over splits and bounds](simulate.png)",
        "## The best within each bound, and in turns on all GPUs",
        markdown_table(HEADS, [_row(result) for result in _visible_cells(study)]),
    ]
    if study.what_ifs:
        heads = ("if", *HEADS[3:])
        rows = [[result.cell.what_if, *_row(result)[3:]] for result in study.what_ifs]
        parts += ["## The best setting under other assumptions", markdown_table(heads, rows)]
    parts += ["## All cells", markdown_table(HEADS, [_row(result) for result in study.results])]
    if study.unfit:
        unique = dict.fromkeys((_split(cell), reason) for cell, reason in study.unfit)
        parts += ["## What does not fit", markdown_table(("train + generate", "reason"), [*unique])]
    return "\n\n".join(parts) + "\n"


def _visible_cells(study: Study) -> list[CellResult]:
    turns = [result for result in study.results if result.cell.in_turns]
    return [*dict.fromkeys(study.by_age.values()), *turns]


def _row(result: CellResult) -> list[str]:
    cell, outcome = result.cell, result.outcome
    return [
        f"{cell.trainer_gpus} in turns" if cell.in_turns else _split(cell),
        str(cell.max_age),
        cell.generation,
        f"{result.speed:,.0f}",
        f"{result.idle:.0%}",
        f"{outcome.trainer_waits:.0%}",
        f"{outcome.fleet_idle:.0%}",
        f"{outcome.mean_age:.1f}",
        f"{outcome.wasted:.1%}",
        f"{outcome.requests:,.1f}",
        f"{outcome.rho:.2f}",
        f"{outcome.start_age:.1f}",
        "" if outcome.law_age is None else f"{outcome.law_age:.1f}",
    ]
