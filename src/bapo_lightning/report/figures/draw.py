"""From the folder of the runs to pictures, verdicts and the page that shows them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bapo_lightning.errors import DataError
from bapo_lightning.report.comparison.runs import Run
from bapo_lightning.report.comparison.settings import collect
from bapo_lightning.report.figures.bars import draw_bars
from bapo_lightning.report.figures.catalogue import Figure
from bapo_lightning.report.figures.claims import Table, adjust, judge
from bapo_lightning.report.figures.curves import draw_curves, draw_shares
from bapo_lightning.report.figures.findings import Findings, Source, write_findings
from bapo_lightning.report.figures.rule import draw_entropy_rule
from bapo_lightning.report.figures.tokens import draw_tokens
from bapo_lightning.report.figures.values import CURVES, VALUES
from bapo_lightning.run_folder.record import Columns, read_tokens

RunsByVariant = Mapping[str, Sequence[Run]]
_DRAWINGS: dict[str, Callable[[Figure, RunsByVariant, Path], Path]] = {
    "curves": draw_curves,
    "shares": draw_shares,
    "tokens": draw_tokens,
    "bars": draw_bars,
    "entropy_rule": draw_entropy_rule,
}


def draw_figures(
    figures: Sequence[Figure], folder: Path, variant_of_run: Mapping[str, str], arguments: Sequence[str]
) -> Findings:
    """Draws `figures` from the finished runs in `folder`, judges their claims together, writes figures.md and
    figures.json.

    Args:
        figures: to draw.
        folder: of the runs; the files are written there.
        variant_of_run: name of each run that belongs to the figures -> its variant.
        arguments: of the command line, so that the page can name the command.
    """
    runs = {
        variant: [run for run in found if run.problem is None]
        for variant, found in _by_variant(folder, variant_of_run).items()
    }
    table = value_table(runs)
    pictures = {
        figure.name: _DRAWINGS[figure.draw](figure, runs, folder / f"figure_{figure.name}.png")
        for figure in figures
    }
    verdicts = adjust([judge(figure.name, claim, table) for figure in figures for claim in figure.claims])
    sources = {figure.name: _source(figure, runs) for figure in figures}
    findings = Findings(tuple(figures), pictures, tuple(verdicts), sources, tuple(arguments))
    write_findings(findings, table, folder)
    return findings


def value_table(runs: RunsByVariant) -> Table:
    """Every value of every run: variant -> name -> seed -> value; a value that a run lacks is absent."""
    table: dict[str, dict[str, dict[int, float]]] = {}
    for variant, members in runs.items():
        for name, value_of in VALUES.items():
            found = {run.seed: value_of(run) for run in members}
            table.setdefault(variant, {})[name] = {
                seed: value for seed, value in found.items() if value is not None
            }
    return table


def _by_variant(folder: Path, variant_of_run: Mapping[str, str]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {variant: [] for variant in variant_of_run.values()}
    for variant, members in found.items():
        members += collect(
            [folder / run for run, its_variant in variant_of_run.items() if its_variant == variant], CURVES
        )
        for run in members:
            run.tokens = _recorded_tokens(run.path)
    return found


def _recorded_tokens(path: str) -> Columns | None:
    try:
        return read_tokens(path)
    except DataError:  # most runs record none; a figure's title counts those that did
        return None


def _source(figure: Figure, runs: RunsByVariant) -> Source:
    members = [run for variant in figure.variants for run in runs[variant]]
    seconds = math.fsum(run.summary["seconds"]["total"] or 0.0 for run in members)
    return Source(len(members), tuple(sorted({run.seed for run in members})), seconds)
