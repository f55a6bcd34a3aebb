"""A study in words: the answer, tables, a page with pictures, and all numbers as files."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bapo_lightning.report.markdown import markdown_table
from bapo_lightning.simulation.picture import draw
from bapo_lightning.simulation.study import CellResult, Study, World

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
