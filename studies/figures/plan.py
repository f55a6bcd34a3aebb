"""The runs that `make figures` needs, from `studies/conf/figures` and the command line.

figures -> their variants -> variants x seeds -> one run each, named <variant>-s<seed>, shared by figures
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bapo_lightning.configuration.compose import hydra_overrides
from bapo_lightning.system.errors import ConfigError, first_line
from bapo_lightning.tools.sweeps.launchers import Launch, chosen_launcher
from bapo_lightning.tools.sweeps.plan import ROOT, SweepPlan, folder_name
from studies.figures.catalogue import Figure, figure_names, read_figure, read_protocol

FIGURE, SEED, KEPT = "figure", "seed", "curves"


@dataclass(frozen=True)
class FiguresPlan:
    figures: tuple[Figure, ...]
    runs: SweepPlan
    launcher: tuple[Launch, bool]
    variant_of_run: dict[str, str]
    arguments: tuple[str, ...]  # of the command line, but for the choice of figures
    curves: Path | None  # a file of curves to draw from, without runs


def read_figures_plan(arguments: Sequence[str]) -> FiguresPlan:
    """Reads the command line and the files of the figures. Runs are ordered by seed, so that a sweep that is
    stopped early leaves runs that can be compared.
    """
    options, changes = _sort_arguments(arguments)
    protocol = read_protocol()
    figures, problems = list[Figure](), list[str]()
    for name in dict.fromkeys(options[FIGURE].split(",") if FIGURE in options else figure_names()):
        try:
            figures.append(read_figure(name, protocol))
        except ConfigError as error:
            problems += error.problems
    in_variants = {key for variant in protocol.variants.values() for key in variant.overrides}
    problems += [
        f"{key} is set by the variants of studies/conf/figures/protocol.yaml; leave it out, or change that"
        for key in sorted(in_variants & set(changes))
    ]
    seeds = _seeds(options[SEED]) if SEED in options else protocol.seeds
    if problems:
        raise ConfigError(problems)
    wanted = {variant for figure in figures for variant in figure.variants}
    jobs, variant_of_run = {}, {}
    for seed in seeds:  # whole seeds first: what is there when a sweep is stopped early can be compared
        for name in (name for name in protocol.variants if name in wanted):
            run = f"{name}-s{seed}"
            jobs[run] = (*hydra_overrides(protocol.variants[name].overrides), f"seed={seed}")
            variant_of_run[run] = name
    folder = folder_name("figures", hydra_overrides(changes)).removeprefix("sweep-")
    plan = SweepPlan(
        name="figures",
        folder=Path(options.get(ROOT, "outputs"), folder),
        jobs=jobs,
        common=hydra_overrides(protocol.common | changes),
    )
    of_launcher = [f"{key}={value}" for key, value in options.items() if key.startswith("hydra")]
    launcher = chosen_launcher([f"hydra.sweeper.parallel_runs={protocol.parallel_runs}", *of_launcher])
    kept = Path(options[KEPT]) if KEPT in options else None
    others = tuple(argument for argument in arguments if not argument.startswith("figure="))
    return FiguresPlan(tuple(figures), plan, launcher, variant_of_run, others, kept)


def _sort_arguments(arguments: Sequence[str]) -> tuple[dict[str, str], dict[str, Any]]:
    options: dict[str, str] = {}
    changes: dict[str, Any] = {}
    problems = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or not key:
            problems.append(f"{argument} cannot be read; write KEY=VALUE")
        elif key in (FIGURE, SEED, KEPT, ROOT) or key.lstrip("+").startswith("hydra"):
            options[key] = value
        else:
            try:
                changes[key] = yaml.safe_load(value)
            except (yaml.YAMLError, UnicodeError) as error:
                problems.append(f"{argument} cannot be read ({first_line(error)}); write KEY=VALUE in YAML")
    if problems:
        raise ConfigError(problems)
    return options, changes


def _seeds(text: str) -> tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(int(seed) for seed in text.split(",")))
    except ValueError:
        raise ConfigError([f"seed={text} must be whole numbers, as in seed=1,2,3"]) from None
