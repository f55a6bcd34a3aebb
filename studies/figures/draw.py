"""From the folder of the runs to pictures, verdicts and the page that shows them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from matplotlib.figure import Figure as Canvas

from bapo_lightning.report.style import save_png
from bapo_lightning.system.errors import DataError
from bapo_lightning.system.phases import advance, phase
from bapo_lightning.system.run_folder.record import read_tokens
from bapo_lightning.tools.comparison.runs import Run
from bapo_lightning.tools.comparison.settings import collect
from studies.figures.bounds import draw_bounds
from studies.figures.catalogue import Figure, read_protocol
from studies.figures.findings import Findings, Source, adjust, judge, write_findings
from studies.figures.kept import keep, read_kept, runs_of, write_kept
from studies.figures.means import draw_bars, draw_curves, draw_shares
from studies.figures.scatter import draw_entropy_rule, draw_tokens
from studies.figures.values import CURVES, VALUES, RunsByVariant, value_of

_DRAWINGS: dict[str, Callable[[Figure, RunsByVariant], Canvas]] = {
    "curves": draw_curves,
    "bounds": draw_bounds,
    "shares": draw_shares,
    "tokens": draw_tokens,
    "bars": draw_bars,
    "entropy_rule": draw_entropy_rule,
}


def draw_figures(
    figures: Sequence[Figure],
    folder: Path,
    variant_of_run: Mapping[str, str],
    arguments: Sequence[str],
    curves: Path | None = None,
) -> Findings:
    """Draws `figures` from the finished runs in `folder`, judges their claims together, writes figures.md,
    figures.json and curves.csv, which holds what is drawn. With `curves`, such a file, no run is read.
    """
    algorithms = {name: entry.overrides["algorithm"] for name, entry in read_protocol().variants.items()}
    if curves is None:
        with phase("reading runs", len(variant_of_run)):
            runs = _by_variant(folder, variant_of_run)
        changes = [text for text in arguments if not text.startswith(("output_root=", "hydra"))]
        command = f'make figures ARGS="{" ".join(changes)}"' if changes else "make figures"
        commits = [run.manifest.get("git_commit") for members in runs.values() for run in members]
        curves = write_kept(folder / "curves.csv", keep(figures, runs), command, commits)
    folder.mkdir(parents=True, exist_ok=True)
    runs = runs_of(read_kept(curves), algorithms)
    table = {variant: _values_of(members) for variant, members in runs.items()}
    with phase("drawing figures", len(figures)):
        pictures = {figure.name: _picture(figure, runs, folder) for figure in figures}
    verdicts = adjust([judge(figure.name, claim, table) for figure in figures for claim in figure.claims])
    sources = {figure.name: _source(figure, runs) for figure in figures}
    findings = Findings(figures, pictures, verdicts, sources, arguments)
    write_findings(findings, table, folder)
    return findings


def _picture(figure: Figure, runs: RunsByVariant, folder: Path) -> Path:
    path = save_png(_DRAWINGS[figure.draw](figure, runs), folder / f"figure_{figure.name}.png")
    advance()
    return path


def _by_variant(folder: Path, variant_of_run: Mapping[str, str]) -> dict[str, list[Run]]:
    runs = {}
    for variant in dict.fromkeys(variant_of_run.values()):
        named = [folder / run for run, its_variant in variant_of_run.items() if its_variant == variant]
        runs[variant] = [run for run in collect(named, CURVES) if run.problem is None]
        for run in runs[variant]:
            with suppress(DataError):  # most runs record no tokens; a figure's title counts those that did
                run.tokens = read_tokens(run.path)
    return runs


def _values_of(runs: Sequence[Run]) -> dict[str, dict[int, float]]:
    """Every value of every run: name -> seed -> value; a value that a run lacks is absent."""
    return {
        name: {run.seed: value for run in runs if (value := value_of(run, name)) is not None}
        for name in VALUES
    }


def _source(figure: Figure, runs: RunsByVariant) -> Source:
    members = [run for variant in figure.variants for run in runs[variant]]
    seconds = math.fsum(run.summary["seconds"]["total"] or 0.0 for run in members)
    return Source(len(members), tuple(sorted({run.seed for run in members})), seconds)
