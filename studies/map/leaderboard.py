"""Many methods under one protocol, each at its own best learning rate: numbers of the leaderboard.

The rate of a method is chosen on the seeds of the gate, by the area under its reward, and everything that is
shown comes from the other seeds. So a method is not judged by a rate that suits another, nor by luck that
chose its rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np

from bapo_lightning.report.intervals import Interval
from studies.map.cells import FRESH, MapCell, Measured, ages_text, read_measured
from studies.map.ratios import RatioInterval
from studies.map.verdicts import COLLAPSED, Pair, PairedComparison, compare, gap_closed, interval_of

ROUNDING = 1e-6  # of mean rewards: methods that differ by less are alike


@dataclass(frozen=True)
class Standing:
    """One method under one condition, at its own rate; intervals are over seeds."""

    method: str
    learning_rate: float
    is_at_edge: bool  # no larger, or no smaller, rate was tried
    area: Interval  # mean reward over training
    # Share of what staleness costs the first method; None where it may cost nothing.
    gap_closed: RatioInterval | None
    collapse_rate: float  # share of the seeds whose reward ends below half its best
    reached: float  # share of the seeds whose reward comes half-way, see `Board.half_way`
    entropy_there: Interval | None  # nats, where it comes there; None if fewer than two seeds do
    update_seconds: float | None  # median


@dataclass(frozen=True)
class Board:
    """All methods in one world at one staleness, the best first."""

    world: str
    options: tuple[tuple[str, float], ...]
    staleness: int
    epochs: int
    lag: int
    # Reward in the middle of the first method's first measurement and the best method's end.
    half_way: float
    standings: tuple[Standing, ...]
    duels: tuple[PairedComparison, ...]  # each of two methods at their own rates, p adjusted over all boards
    ranks: Mapping[str, Mapping[float, int]]  # of each method among all, by learning rate

    @property
    def title(self) -> str:
        options = ", ".join(f"{name.rpartition('.')[2]} {value:g}" for name, value in self.options)
        ages = ages_text(self.staleness, self.epochs, self.lag)
        return f"{self.world}{f' ({options})' if options else ''}, {ages}"


def read_boards(
    folder: Path, cells: Sequence[MapCell], methods: Sequence[str], duels: Sequence[tuple[str, str]]
) -> list[Board]:
    """Reads all boards of a map."""
    conditions: dict[MapCell, list[MapCell]] = {}
    for cell in cells:
        conditions.setdefault(replace(cell, learning_rate=0.0), []).append(cell)
    drawn = [_board(folder, members, methods, duels) for members in conditions.values()]
    compared = iter(compare([pair for _, pairs in drawn for pair in pairs]))
    return [replace(board, duels=tuple(islice(compared, len(pairs)))) for board, pairs in drawn]


def _board(
    folder: Path, cells: Sequence[MapCell], methods: Sequence[str], duels: Sequence[tuple[str, str]]
) -> tuple[Board, list[Pair]]:
    """The board without its duels, and the pairs that are compared in them."""
    chosen = {name: _best_cell(folder, cells, name) for name in (FRESH, *methods)}
    measured = {name: read_measured(folder, cell, name) for name, cell in chosen.items()}
    reference, fresh = measured[methods[0]], measured[FRESH]
    best_end = max(float(measured[name].final.mean()) for name in methods)
    first_measured = float(reference.curves["reward"][:, 0].mean())
    level = (first_measured + best_end) / 2
    rates = sorted({cell.learning_rate for cell in cells})
    edges = {rates[0], rates[-1]} if len(rates) > 1 else set()
    standings = [
        _standing(name, chosen[name], edges, measured[name], reference, fresh, level)
        for name in (*methods, FRESH)
    ]
    first = cells[0]
    board = Board(
        world=first.world,
        options=first.options,
        staleness=first.staleness,
        epochs=first.epochs,
        lag=first.lag,
        half_way=level,
        standings=tuple(sorted(standings, key=lambda standing: -standing.area.mean)),
        duels=(),
        ranks=_ranks(folder, cells, methods),
    )
    return board, [(one, other, measured[one].area, measured[other].area) for one, other in duels]


def _best_cell(folder: Path, cells: Sequence[MapCell], method: str) -> MapCell:
    """The cell with the rate at which a method has the largest area on the seeds of the gate."""
    areas = [read_measured(folder, cell, method, gate=True).area.mean() for cell in cells]
    return cells[int(np.nanargmax(areas))]


def _standing(
    name: str,
    cell: MapCell,
    edges: set[float],
    item: Measured,
    reference: Measured,
    fresh: Measured,
    level: float,
) -> Standing:
    reward, entropy = item.curves["reward"], item.curves["entropy"]
    there = reward >= level
    reached = there.any(1)
    entropies = entropy[np.arange(len(entropy)), there.argmax(1)][reached]
    seconds = item.curves.get("update_seconds")
    return Standing(
        method=name,
        learning_rate=cell.learning_rate,
        is_at_edge=cell.learning_rate in edges,
        area=interval_of(item.area),
        gap_closed=gap_closed(item, fresh, reference),
        collapse_rate=float((item.final < COLLAPSED * reward.max(1)).mean()),
        reached=float(reached.mean()),
        entropy_there=interval_of(entropies) if len(entropies) > 1 else None,
        update_seconds=None if seconds is None else float(np.nanmedian(seconds)),
    )


def _ranks(folder: Path, cells: Sequence[MapCell], methods: Sequence[str]) -> dict[str, dict[float, int]]:
    """Place of each method among all at each learning rate, 1 is the best; equal ones share theirs."""
    ranks: dict[str, dict[float, int]] = {name: {} for name in methods}
    for cell in cells:
        areas = {name: read_measured(folder, cell, name).area.mean() for name in methods}
        for name, area in areas.items():
            better = sum(other > area + ROUNDING for other in areas.values())
            ranks[name][cell.learning_rate] = 1 + int(better)
    return ranks
