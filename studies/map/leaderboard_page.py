"""The leaderboard in words, in tables and in a picture of ranks over learning rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bapo_lightning.report import style
from bapo_lightning.report.intervals import Interval
from bapo_lightning.report.markdown import markdown_table
from studies.map.cells import FRESH
from studies.map.leaderboard import ROUNDING, Board, Standing
from studies.map.picture import MethodLook
from studies.map.ratios import RatioInterval

HEADS = (
    "method",
    "mean over",
    "rate",
    "mean reward",
    "gap closed",
    "collapsed",
    "comes half-way",
    "entropy there",
)
NAMED = 5  # methods whose rank is drawn in a colour of its own, besides those of the duels
APART = 2.2  # ranks between two names
CEILING = "fresh data (the ceiling)"


def render_leaderboard(
    boards: Sequence[Board], labels: Mapping[str, str], means: Mapping[str, str], settings: str
) -> str:
    """The page. `means` say what the loss of each method is a mean over."""
    shown = {**labels, FRESH: CEILING}
    parts = [
        "# Leaderboard",
        settings,
        "Each method runs at its own best learning rate, chosen on seeds that are not shown (edge: no "
        "larger, or no smaller, one was tried); intervals are 95 % over seeds, and those of the gap closed "
        "have the noise of the gap as well (Fieller).",
    ]
    for board in boards:
        half_way = (
            f"Half-way is a reward of {board.half_way:.3f}: in the middle of the first measurement of "
            f"{labels[next(iter(labels))]} and the best end."
        )
        parts += [f"## {board.title}", half_way, _standings(board, shown, means)]
        if board.duels:
            parts += [
                "Head to head, paired by seed, p adjusted for all of this page (Holm):",
                _duels(board, shown),
            ]
    return "\n\n".join(parts) + "\n"


def _standings(board: Board, labels: Mapping[str, str], means: Mapping[str, str]) -> str:
    heads, rows = _standing_rows([board], labels, means)
    return markdown_table(["", *heads[2:]], [row[1:] for row in rows])


def standing_table(
    boards: Sequence[Board], labels: Mapping[str, str], means: Mapping[str, str]
) -> tuple[list[str], list[list[str]]]:
    """Returns heads and rows of leaderboard.csv: every method on every board."""
    return _standing_rows(boards, {**labels, FRESH: CEILING}, means)


def _standing_rows(
    boards: Sequence[Board], labels: Mapping[str, str], means: Mapping[str, str]
) -> tuple[list[str], list[list[str]]]:
    timed = any(standing.update_seconds is not None for board in boards for standing in board.standings)
    rows = [
        [board.title, place, labels[standing.method], means[standing.method], *_cells(standing, timed)]
        for board in boards
        for place, standing in zip(_places(board), board.standings, strict=True)
    ]
    return ["board", "place", *HEADS, *(["ms an update"] if timed else [])], rows


def _places(board: Board) -> list[str]:
    """Places by mean reward; methods that are alike share theirs."""
    areas = [standing.area.mean for standing in board.standings]
    return [str(1 + sum(other > area + ROUNDING for other in areas)) for area in areas]


def _cells(standing: Standing, timed: bool) -> list[str]:
    seconds = standing.update_seconds
    return [
        f"{standing.learning_rate:g}{', edge' if standing.is_at_edge else ''}",
        standing.area.text(3),
        _text(standing.gap_closed, 2),
        f"{standing.collapse_rate:.0%}",
        f"{standing.reached:.0%}",
        _text(standing.entropy_there, 2),
        *([("-" if seconds is None else f"{1e3 * seconds:.1f}")] if timed else []),
    ]


def _duels(board: Board, labels: Mapping[str, str]) -> str:
    heads, rows = duel_table([board], labels)
    return markdown_table(heads[1:], [row[1:] for row in rows])


def duel_table(boards: Sequence[Board], labels: Mapping[str, str]) -> tuple[list[str], list[list[str]]]:
    """Returns heads and rows of duels.csv: pairs of methods in mean reward over training, paired by seed."""
    rows = [
        [
            board.title,
            f"{labels[duel.method]} - {labels[duel.against]}",
            duel.difference.text(3, "+"),
            "-" if duel.adjusted is None else f"{duel.adjusted:.3g}",
            duel.verdict,
        ]
        for board in boards
        for duel in board.duels
    ]
    return ["board", "mean reward over training", "difference", "p", "verdict"], rows


def _text(interval: Interval | RatioInterval | None, digits: int) -> str:
    return "-" if interval is None else interval.text(digits)


def draw_ranks(boards: Sequence[Board], methods: Mapping[str, MethodLook], path: Path) -> Path:
    """Draws the rank of every method over the learning rates, a panel for each board; methods of the duels
    and the best ones are named, the others are faint.
    """
    figure = style.new_figure(9.0, 0.5 + 3.6 * len(boards))
    panels = figure.subplots(len(boards), 1, squeeze=False)[:, 0]
    for axes, board in zip(panels, boards, strict=True):
        style.style_axes(axes, board.title, "learning rate", "rank by mean reward")
        best = [standing.method for standing in board.standings if standing.method != FRESH][:NAMED]
        named = {*best, *(name for duel in board.duels for name in (duel.method, duel.against))}
        height = 0.0
        for name, ranks in sorted(board.ranks.items(), key=lambda item: item[1][max(item[1])]):
            rates, places = zip(*sorted(ranks.items()), strict=True)
            colour = style.algorithm_colour(methods[name].algorithm) if name in named else style.FAINT
            width = 1.8 if name in named else 0.5
            axes.plot(rates, places, color=colour, linewidth=width, marker="o", markersize=2 * width)
            if name in named:
                height = max(places[-1], height + APART)
                axes.annotate(
                    methods[name].label, (rates[-1], places[-1]), (10, height), fontsize=7, va="center",
                    textcoords=("offset points", "data"), color=colour,
                )  # fmt: skip
        axes.set_xscale("log")
        axes.invert_yaxis()
        axes.margins(x=0.02)
    return style.save_png(figure, path)
