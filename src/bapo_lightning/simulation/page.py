"""A study in words: the answer, tables, a page with pictures, and all numbers as files."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from matplotlib.axes import Axes

from bapo_lightning.report import style
from bapo_lightning.report.markdown import markdown_table
from bapo_lightning.simulation.study import SPEED, CellResult, Study, World

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
    style.style_axes(axes, f"Ages, {_cell(study.best)}", "age of a token, updates", "share of trained tokens")
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
    style.style_axes(axes, f"Tokens of a pass, {_cell(study.best)}", "max_age, updates", "tokens a second")
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


def _cell(result: CellResult) -> str:
    return f"{result.cell.trainer_gpus} + {result.cell.fleet_gpus} GPUs"


HEADS = (
    "train + generate", "max_age", "a pass", "tokens/s", "GPUs idle", "trainer waits", "fleet idle",
    "mean age", "in vain",
)  # fmt: skip


def answer(study: Study) -> str:
    """Returns the best split, what it gives, and the bound beyond which staleness does not pay."""
    best, cell, turns = study.best, study.best.cell, study.turns
    text = (
        f"Best split: {cell.trainer_gpus} of {cell.gpus} GPUs train and {cell.fleet_gpus} generate, with "
        f"max_age={cell.max_age} and {_pass(cell.partial_tokens)}: {best.speed:,.0f} response tokens/s, GPUs "
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


def console_table(study: Study) -> str:
    """Returns the best result within each bound, and those in turns, as aligned text."""
    rows = [list(HEADS), *map(_row, _shown(study))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in rows
    )


def write_page(study: Study, world: World, name: str, folder: Path) -> Path:
    """Writes index.md, simulate.png, cells.json and cells.csv into a folder; returns the page."""
    folder.mkdir(parents=True, exist_ok=True)
    draw(study, folder / "simulate.png")
    every = [*study.results, *study.what_ifs]
    rows = [{**asdict(r.cell), "idle": r.idle, **asdict(r.outcome)} for r in every]
    unfit = [{**asdict(cell), "reason": reason} for cell, reason in study.unfit]
    document = {"answer": answer(study), "cells": rows, "unfit": unfit}
    (folder / "cells.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    with (folder / "cells.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows({**row, "ages": json.dumps(row["ages"])} for row in rows)
    page = folder / "index.md"
    page.write_text(_page(study, world, name), encoding="utf-8")
    return page


def _page(study: Study, world: World, name: str) -> str:
    setting, plan = world.setting, world.plan
    where = (
        "a measured run's times" if world.measured else f"{world.gpus} x {plan.gpu.name}, times of the plan"
    )
    parts = [
        f"# {name}, simulated: {where}",
        answer(study),
        f"{setting.groups_per_batch} problems x {setting.group_size} responses of "
        f"{setting.lengths.mean():,.0f} tokens on average (up to {setting.lengths.max():,}), "
        f"{setting.num_batches} rollout batches of which the first {world.num_skipped} do not count.",
        "![throughput, idle shares and ages over splits and bounds](simulate.png)",
        "## The best within each bound, and in turns on all GPUs",
        markdown_table(HEADS, [_row(result) for result in _shown(study)]),
    ]
    if study.what_ifs:
        heads = ("if", *HEADS[3:])
        rows = [[result.cell.what_if, *_row(result)[3:]] for result in study.what_ifs]
        parts += ["## The best setting under other assumptions", markdown_table(heads, rows)]
    parts += ["## All cells", markdown_table(HEADS, [_row(result) for result in study.results])]
    if study.unfit:
        rows = [[_split(cell.trainer_gpus, cell.fleet_gpus), reason] for cell, reason in study.unfit]
        unique = [list(row) for row in dict.fromkeys(map(tuple, rows))]
        parts += ["## What does not fit", markdown_table(("train + generate", "reason"), unique)]
    return "\n\n".join(parts) + "\n"


def _shown(study: Study) -> list[CellResult]:
    turns = [result for result in study.results if result.cell.in_turns]
    return [*dict.fromkeys(study.by_age.values()), *turns]


def _row(result: CellResult) -> list[str]:
    cell, found = result.cell, result.outcome
    return [
        f"{cell.trainer_gpus} in turns" if cell.in_turns else _split(cell.trainer_gpus, cell.fleet_gpus),
        str(cell.max_age),
        "whole" if cell.partial_tokens is None else f"{cell.partial_tokens:,}",
        f"{result.speed:,.0f}",
        f"{result.idle:.0%}",
        f"{found.trainer_waits:.0%}",
        f"{found.fleet_idle:.0%}",
        f"{found.mean_age:.1f}",
        f"{found.wasted:.1%}",
    ]


def _split(trainer: int, fleet: int) -> str:
    return f"{trainer} + {fleet}"


def _pass(tokens: int | None) -> str:
    return "whole responses" if tokens is None else f"passes of {tokens:,} tokens"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
