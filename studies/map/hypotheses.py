"""Hypotheses that were written down before their runs, and what became of them.

map with `verdict` -> pairs of methods in cells -> paired intervals, adjusted over the page -> judged
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bapo_lightning.report import style
from bapo_lightning.report.markdown import markdown_table
from bapo_lightning.report.paired import EQUAL, LESS, MORE, paired_difference, verdict_of
from studies.map.cells import FRESH, MapCell, Measured, read_measured
from studies.map.verdicts import COLLAPSED, Pair, PairedComparison, by_seed, certain, compare

if TYPE_CHECKING:
    from studies.map.plan import CollapseClaim, Hypothesis, MapConfig, VerdictConfig

Curves = Mapping[tuple[MapCell, str], Measured]  # of every method in every cell
ONCE = "Pairs whose numbers are those of another pair in every cell are counted once."
COLLAPSING = 0.5  # share of the runs that a method which collapses exceeds
MEANT = {"not less": (MORE, EQUAL)}  # verdicts that a claim expects, if they are several
COLOURS = {MORE: "#2a7f62", LESS: "#b5452c", EQUAL: "#33588f"}


@dataclass(frozen=True)
class Judged:
    """One pair of methods in one cell."""

    hypothesis: str
    expected: str
    cell: str
    comparison: PairedComparison  # of the endpoint, adjusted over all pairs of the page
    verdict: str  # by what matters
    curve: str  # that is compared
    matters: float  # a difference within it is equal


def judge(config: MapConfig, setup: VerdictConfig, measured: Curves) -> list[Judged]:
    """Compares every pair of every hypothesis in each of its cells."""
    pairs: list[tuple[Hypothesis, MapCell, Pair]] = []
    for hypothesis in setup.hypotheses:
        for cell, other in cells_of(config, hypothesis):
            for method, against in hypothesis.pairs:
                one = endpoint(measured[cell, method], setup, hypothesis.share and 1.0, hypothesis.curve)
                two = endpoint(measured[other, against], setup, hypothesis.share, hypothesis.curve)
                pairs.append((hypothesis, cell, (method, against, one, two)))
    compared = compare([pair for _, _, pair in pairs])
    judged = []
    for (claim, cell, _), item in zip(pairs, compared, strict=True):
        matters = claim.matters or setup.matters
        verdict = verdict_of(item.difference, item.adjusted, matters)
        judged.append(
            Judged(claim.name, claim.expected, cell.name, item, verdict, claim.curve or setup.curve, matters)
        )
    return judged


def cells_of(config: MapConfig, hypothesis: Hypothesis) -> list[tuple[MapCell, MapCell]]:
    """The cells in which the one and the other method of a hypothesis are looked at."""
    cells = [one for one in config.cells if one.world in hypothesis.worlds and is_at(one, hypothesis.where)]
    if hypothesis.uses is None:
        return [(one, one) for one in cells]
    first, second = hypothesis.uses
    return [(one, replace(one, epochs=second)) for one in cells if one.epochs == first]


def is_at(cell: MapCell, where: Mapping[str, Sequence[float]]) -> bool:
    """Whether the axes of a cell have values that a claim names."""
    return all(getattr(cell, axis) in values for axis, values in where.items())


def read_all(config: MapConfig, folder: Path) -> Curves:
    """Reads the curves of every method, and of fresh data if it is compared, in every cell."""
    names = (*[FRESH] * config.needs_fresh, *config.methods)
    curves = {(cell, name): read_measured(folder, cell, name) for cell in config.cells for name in names}
    if not all("time" in measured.curves for measured in curves.values()):
        return curves
    ends = {
        cell: np.min([curves[cell, name].curves["time"][:, -1] for name in names], 0) for cell in config.cells
    }
    return {pair: in_equal_time(measured, ends[pair[0]]) for pair, measured in curves.items()}


def in_equal_time(measured: Measured, ends: np.ndarray) -> Measured:
    """Adds `reward_in_time`, [seeds, 1]: the mean reward until the `ends`, [seeds], of the quickest runs."""
    from studies.late.claims import mean_until  # imports torch

    parts = zip(measured.curves["time"], measured.curves["reward"], ends, strict=True)
    rewards = np.array([[mean_until(*part)] for part in parts])
    return Measured({**measured.curves, "reward_in_time": rewards})


def labels_of(config: MapConfig) -> dict[str, str]:
    return {FRESH: "fresh data"} | {name: entry.label for name, entry in config.methods.items()}


def collapse_row(config: MapConfig, claim: CollapseClaim, measured: Curves) -> list[str]:
    """The claim, in how many cells it came true, and how many runs ended below half their best."""
    from scipy.stats import binomtest

    cells = [(cell, name) for cell in config.cells if is_at(cell, claim.where) for name in claim.methods]
    is_low = [measured[pair].final < COLLAPSED * measured[pair].curves["reward"].max(1) for pair in cells]
    tests = [binomtest(int(each.sum()), len(each)).proportion_ci() for each in is_low]
    ends = [f"{tests[0].low:.2f} to {tests[0].high:.2f}"] if len({each.sum() for each in is_low}) == 1 else []
    summary = f"{sum(map(np.sum, is_low))} of {sum(map(len, is_low))} runs collapsed"
    by_name = {
        name: sum(int(each.sum()) for (_, other), each in zip(cells, is_low, strict=True) if other == name)
        for name in claim.methods
    }
    summary += "".join(f", {count} with {name}" for name, count in by_name.items() if count)
    came_true = f"{sum(each.low > COLLAPSING for each in tests)} of {len(tests)}"
    return [claim.name, claim.claim, "collapse", came_true, ", ".join([summary, *ends])]


def endpoint(
    measured: Measured, setup: VerdictConfig, share: float | None = None, curve: str | None = None
) -> np.ndarray:
    """The endpoint of every seed, [seeds].

    Args:
        measured: curves of a method.
        setup: says which curve counts, and whether its last value or its mean.
        share: of training at whose end the curve is read; None: as `setup` says.
        curve: another one; None: as `setup` says.
    """
    values = measured.curves[curve or setup.curve]
    if share is not None:
        return values[:, round(share * values.shape[1]) - 1]
    return values[:, -1] if setup.at_end else values.mean(1)


def render(
    config: MapConfig,
    setup: VerdictConfig,
    judged: Sequence[Judged],
    settings: str,
    collapses: Sequence[list[str]] = (),
) -> str:
    """The page: each claim, and how often it came true; `collapses` are rows of `collapse_row`."""
    _, pairs = pair_table(config, judged)
    parts = ["# Verdict", settings, f"Endpoint: {setup.endpoint}", _limits(setup), ONCE]
    rows = [
        [each.name, each.claim, each.expected, *counts(table, each.expected)]
        for each in setup.hypotheses
        for table in [[row[1:] for row in pairs if row[0] == each.name]]
    ]
    heads = ["hypothesis", "claim", "expected", "came true", "verdicts"]
    parts.append(markdown_table(heads, [*rows, *collapses]))
    return "\n\n".join(parts) + "\n"


def pair_table(config: MapConfig, judged: Sequence[Judged]) -> tuple[list[str], list[list[str]]]:
    """Returns heads and rows of pairs.csv: every pair of every hypothesis in each of its cells."""
    labels = labels_of(config)
    rows = [
        [
            item.hypothesis,
            item.cell,
            *(labels[pair.method], labels[pair.against]),
            pair.difference.text(3, "+"),
            item.verdict,
        ]
        for item in judged
        for pair in (item.comparison,)
    ]
    return ["hypothesis", "cell", "method", "against", "difference", "verdict"], rows


def counts(table: Sequence[Sequence[str]], expected: str) -> tuple[str, str]:
    """Returns how often a claim came true, and how often each verdict was given, in words.

    Args:
        table: cell, method, against, difference and verdict of every pair in every cell.
        expected: the verdict that the claim expects.
    """
    pairs: dict[tuple[str, str], list[tuple[str, ...]]] = {}
    for cell, method, against, *outcome in table:
        pairs.setdefault((method, against), []).append((cell, *outcome))
    verdicts = Counter(row[-1] for rows in dict.fromkeys(map(tuple, pairs.values())) for row in rows)
    came_true = f"{sum(verdicts[each] for each in MEANT.get(expected, (expected,)))} of {verdicts.total()}"
    return came_true, ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())


def _limits(setup: VerdictConfig) -> str:
    others = [f"{each.name} {each.matters:g}" for each in setup.hypotheses if each.matters]
    return f"Equal: within {setup.matters:g}" + f" ({', '.join(others)})" * bool(others) + "."


def means(config: MapConfig, setup: VerdictConfig, measured: Curves) -> tuple[list[str], list[list[str]]]:
    """Returns heads and rows of means.csv: the endpoint of every method in every cell, mean over seeds, and
    the means of other curves that claims are about or that are to be shown.
    """
    of_claims = [(claim.curve, claim.share) for claim in setup.hypotheses if claim.curve]
    first = setup.curve, None
    curves = dict.fromkeys([first, *of_claims, *setup.shown.items()])
    labels = {name: label for name, label in labels_of(config).items() if name != FRESH or config.needs_fresh}
    rows = [
        [
            cell.name
            + f", {curve}{'' if share is None else ' at the end' if share == 1 else f' at {share:g}'}"
            * ((curve, share) != first),
            *(f"{endpoint(measured[cell, name], setup, share, curve).mean():.3f}" for name in labels),
        ]
        for cell in config.cells
        for curve, share in curves
    ]
    return ["cell", *labels.values()], rows


def draw(judged: Sequence[Judged], labels: Mapping[str, str], path: Path) -> Path:
    """Draws every difference with its 95 % interval, a panel for each hypothesis; the band is what counts as
    equal. Panels have scales of their own if they show different curves.
    """
    names = list(dict.fromkeys(item.hypothesis for item in judged))
    by_name = {name: [item for item in judged if item.hypothesis == name] for name in names}
    heights = [len(items) + 2 for items in by_name.values()]
    is_one = len({item.curve for item in judged}) == 1
    figure = style.new_figure(9.5, 0.6 + (0.17 if is_one else 0.27) * sum(heights))
    panels = figure.subplots(len(names), 1, squeeze=False, sharex=is_one, height_ratios=heights)[:, 0]
    for axes, (name, items) in zip(panels, by_name.items(), strict=True):
        about = "" if is_one else f", {items[0].curve.replace('_', ' ')}"
        style.style_axes(axes, f"{name}{about}: expected {items[0].expected}", "", "")
        axes.axvspan(-items[0].matters, items[0].matters, color=style.FAINT, alpha=0.35, linewidth=0)
        axes.axvline(0, color=style.INK, linewidth=0.6)
        for row, item in enumerate(items):
            colour = COLOURS.get(item.verdict, style.INK)
            width: Any = item.comparison.difference.half_width or 0.0
            axes.errorbar(
                item.comparison.difference.mean, row, xerr=width, fmt="o", markersize=3, color=colour
            )
        pairs = [(item.comparison.method, item.comparison.against, item.cell) for item in items]
        texts = [f"{labels[method]} - {labels[against]}  {cell}" for method, against, cell in pairs]
        axes.set_yticks(range(len(items)), texts, fontsize=6)
        axes.set_ylim(len(items) - 0.3, -0.7)
    panels[-1].set_xlabel("difference of the endpoint; green: more, red: less, blue: equal", fontsize=8)
    return style.save_png(figure, path)


def draw_against_fresh(config: MapConfig, setup: VerdictConfig, measured: Curves, path: Path) -> Path:
    """Draws every method's endpoint minus that of fresh data, with 95 % intervals, a panel for each cell."""
    fresh = {cell: by_seed(endpoint(measured[cell, FRESH], setup)) for cell in config.cells}
    differences = {
        (cell, name): certain(paired_difference(by_seed(endpoint(measured[cell, name], setup)), fresh[cell]))
        for cell in config.cells
        for name in config.methods
    }
    totals = {name: sum(differences[cell, name].mean for cell in config.cells) for name in config.methods}
    names = sorted(totals, key=totals.__getitem__)
    figure = style.new_figure(3.0 + 1.7 * len(config.cells), 1.0 + 0.24 * len(names))
    panels = figure.subplots(1, len(config.cells), squeeze=False, sharex=True, sharey=True)[0]
    for axes, cell in zip(panels, config.cells, strict=True):
        style.style_axes(axes, f"lag {cell.lag}" + f", batch {cell.batch}" * (cell.batch > 0), "", "")
        axes.axvspan(-setup.matters, setup.matters, color=style.FAINT, alpha=0.35, linewidth=0)
        for row, name in enumerate(names):
            delta = differences[cell, name]
            colour = style.ALGORITHM_COLOURS["bapo"] if name.startswith("bapo") else style.INK
            axes.errorbar(delta.mean, row, xerr=delta.half_width or 0.0, fmt="o", markersize=4, color=colour)
        axes.set_yticks(range(len(names)), [config.methods[name].label for name in names], fontsize=8)
    figure.supxlabel("reward minus that of fresh data (the band counts as equal)", fontsize=9)
    return style.save_png(figure, path)


def plain(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    """All pairs as plain values."""
    rows = [asdict(item) for item in judged]
    return [entry.pop("comparison") | entry for entry in rows]
