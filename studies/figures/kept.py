"""Curves that figures show, in a table that the repository keeps: pictures are drawn from it alone.

# COMMAND; commit HASH
variant,seed,name,steps,values     a curve, a sample of tokens (no steps), or a number of a run (`=name`)
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from bapo_lightning.report.metrics import metric_of
from bapo_lightning.system.errors import DataError
from bapo_lightning.system.run_folder.record import Columns, Curve
from bapo_lightning.system.run_folder.text_file import write_csv, write_text
from bapo_lightning.tools.comparison.runs import NOTHING, Run
from studies.figures.catalogue import Figure
from studies.figures.scatter import EDGES, TOKENS
from studies.figures.values import CURVES, DRAWN, RunsByVariant, value_of

Kept = dict[tuple[str, int], dict[str, Curve]]  # (variant, seed) -> name -> steps, values
_HEADS = ("variant", "seed", "name", "steps", "values")
POINTS = 64  # of a curve
_TOKENS = 40  # of a run in each class of ratios


def write_kept(path: Path, kept: Kept, command: str, commits: Iterable[object]) -> Path:
    """Writes curves in four digits, numbers in full, under the command and the commits of the runs."""
    rows = [
        (
            *key,
            name,
            _range(steps),
            " ".join(f"{value:.17g}" if name[0] == "=" else f"{value:.4g}" for value in values),
        )
        for key, curves in kept.items()
        for name, (steps, values) in curves.items()
    ]
    write_csv(path, _HEADS, rows)
    head = f"# {command}; commit {', '.join(sorted({str(commit) for commit in commits}))}"
    return write_text(path, f"{head}\n{path.read_text(encoding='utf-8')}")


def read_kept(path: Path) -> Kept:
    """Reads what `write_kept` wrote. Raises DataError for another file."""
    kept: Kept = {}
    try:
        reader = csv.DictReader(path.read_text(encoding="utf-8").splitlines()[1:])
        if tuple(reader.fieldnames or ()) != _HEADS:
            raise ValueError(f"its columns are not {', '.join(_HEADS)}")
        for row in reader:
            values = [float(value) for value in row["values"].split()]
            first, colon, rest = row["steps"].partition(":")
            steps = [*range(int(first), *map(int, rest.split(":")))] if colon else [*map(int, first.split())]
            kept.setdefault((row["variant"], int(row["seed"])), {})[row["name"]] = steps, values
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} holds no curves of figures ({error}); give a curves.csv of make figures"
        ) from None
    return kept


def _range(steps: Sequence[int]) -> str:
    spacing = steps[1] - steps[0] if len(steps) > 2 else 0
    is_even = spacing and [*steps] == [*range(steps[0], steps[-1] + 1, spacing)]
    return f"{steps[0]}:{steps[-1] + 1}:{spacing}" if is_even else " ".join(map(str, steps))


def thinned(name: str, curve: Curve, points: int = POINTS) -> Curve:
    """Means of at most `points` equal stretches, geometric ones on a logarithmic axis; few points, and what
    jumps between values whose mean is neither, stay as they are.
    """
    (steps, values), metric = curve, metric_of(name)
    if len(values) <= points or metric.jumps:
        return curve
    width, parts = -(-(steps[-1] + 1) // points), dict[int, list[float]]()
    for step, value in zip(steps, values, strict=True):
        if value > 0 or not metric.log:
            part = parts.setdefault(step // width * width + width // 2, [])
            part.append(math.log(value) if metric.log else value)
    means = [fmean(part) for part in parts.values()]
    return [*parts], [math.exp(mean) for mean in means] if metric.log else means


def keep(figures: Sequence[Figure], runs: RunsByVariant) -> Kept:
    """Returns what `figures` draw and judge of their runs."""
    names: dict[str, dict[str, None]] = {}
    for figure in figures:
        drawn = [*figure.metrics, *DRAWN.get(figure.draw, ()), *(f"={value}" for value in figure.values)]
        for variant in figure.variants:
            names.setdefault(variant, {}).update(dict.fromkeys(drawn))
        for claim in figure.claims:
            for variant in filter(None, (claim.more, claim.less, claim.of)):
                names[variant][f"={claim.value}"] = None
    return {(variant, run.seed): _kept(run, names[variant]) for variant in names for run in runs[variant]}


def _kept(run: Run, names: Iterable[str]) -> dict[str, Curve]:
    numbers: dict[str, float | None] = {
        "=staleness": run.staleness,
        "=seconds": run.summary["seconds"]["total"],
    }
    numbers |= {name: value_of(run, name[1:]) for name in names if name[0] == "="}
    kept: dict[str, Curve] = {name: ([], [value]) for name, value in numbers.items() if value is not None}
    kept |= {name: thinned(name, run.curves[name]) for name in names if name in run.curves}
    if TOKENS[0] in names and run.tokens is not None:
        kept |= {name: ([], values) for name, values in _sample(run.tokens).items()}
    return kept


def _sample(tokens: Columns) -> Columns:
    """At most `_TOKENS` tokens of each class of ratios, at equal distances in the record."""
    places: list[int] = []
    for low, high in pairwise(EDGES):
        inside = [place for place, ratio in enumerate(tokens["ratio"]) if low <= ratio < high]
        places += inside[:: -(-len(inside) // _TOKENS) or 1]
    return {name: [tokens[name][place] for place in sorted(places)] for name in TOKENS}


def runs_of(kept: Kept, algorithms: Mapping[str, str]) -> dict[str, list[Run]]:
    """Returns runs by variant with what was kept of them; `algorithms` are the algorithms of all variants."""
    runs: dict[str, list[Run]] = {variant: [] for variant in algorithms}
    for (variant, seed), curves in kept.items():
        values = {name[1:]: numbers[0] for name, (_, numbers) in curves.items() if name[0] == "="}
        summary = {"seconds": {"total": values.get("seconds")}, "kept": values}
        run = Run("", None, algorithms[variant], seed, int(values["staleness"]), summary=summary)
        run.curves = dict.fromkeys(CURVES, NOTHING) | curves
        run.tokens = {name: curves[name][1] for name in TOKENS if name in curves} or None
        runs[variant].append(run)
    return runs
