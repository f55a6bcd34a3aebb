"""The runs of a sweep, composed and checked before the first one begins.

    cases (settings that belong together) x parameters (every combination) -> one tuple of overrides per run

An override on the command line replaces the values of a key that the sweep varies (`seed=0,1`). Any other key
with several values, or with Hydra's `range(...)`, is varied as well. A single value holds for all runs, and
the sweep then has a separate folder, which `folder=NAME` names.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from annotated_types import MinLen
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser

from bapo_lightning.configuration.compose import compose_run, hydra_overrides, hydra_value
from bapo_lightning.configuration.early import early_problems
from bapo_lightning.configuration.wording import value_problem
from bapo_lightning.runs.resume import is_finished
from bapo_lightning.system.errors import ConfigError, DataError, MachineError
from bapo_lightning.system.phases import advance, phase
from bapo_lightning.system.run_folder.config_keys import changes, short_names
from bapo_lightning.system.run_folder.record import read_config
from bapo_lightning.system.values import Advice, PathName

Config = dict[str, Any]
Job = tuple[str, ...]
# Keys of conf/sweep/<name>.yaml; the launcher judges `parallel_runs`.
KEYS = {
    "parameters": Annotated[
        dict[str, Annotated[list[Any], MinLen(1)]],
        Advice("must hold a list of values for each key: {seed: [0, 1]}"),
    ],
    "cases": Annotated[
        list[dict[str, Any]] | None, Advice("must be a list of settings: [{seed: 0}, {seed: 1}]")
    ],
    "parallel_runs": Any,
    "reference": str | None,
    "folder": PathName | None,
}
ROOT, SWEEP = "output_root", "sweep"
OWN = ("run_folder", "resume")  # keys that a sweep sets in each run
NEEDS = ("GPUs", "memory", "model")  # lines of a MachineError, in its order


@dataclass(frozen=True)
class SweepPlan:
    """The runs of a sweep by name; a run's folder is `folder`/name."""

    name: str
    folder: Path
    jobs: dict[str, Job]  # overrides that set a run apart
    common: Job  # overrides of all runs
    reference: str | None = None  # setting that the others are compared with
    options: Job = ()  # Hydra's own for each run, such as --config-dir=DIR

    def overrides(self, run: str) -> Job:
        """All overrides that a run is started with."""
        folder = f"run_folder={hydra_value(str(self.folder / run))}"
        group = f"group={hydra_value(self.folder.name)}"
        return (group, *self.common, *self.jobs[run], folder, "resume=auto")


def read_plan(
    sweep: str | None,
    options: Config,
    arguments: Sequence[str],
    root: Any = "outputs",
    loader: ConfigLoader | None = None,
    hydra_options: Job = (),
) -> SweepPlan:
    """The runs that a sweep's file and the command line ask for.

    Args:
        sweep: name of the file; None: the command line alone says what is varied, and names the sweep by it.
        options: content of the file, and of conf/hydra/sweeper/runs.yaml.
        arguments: overrides of the command line, without Hydra's own.
        root: folder that the sweep's folder is made in.
        loader: finds choices by pattern, as in `algorithm=glob(*)`.
        hydra_options: what Hydra itself needs in each run, such as --config-dir=DIR.

    Raises:
        ConfigError: the overrides do not go together, or nothing is varied.
    """
    options = {**dict.fromkeys(KEYS), "parameters": {}, **options}
    wrong = [
        f"hydra.sweeper.{key}={options[key]} {text}"
        for key, kind in KEYS.items()
        if (text := value_problem(kind, key, options[key]))
    ]
    if not (isinstance(root, str | Path) and str(root)):
        wrong.append(f"{ROOT}={root} must be text")
    if wrong:
        raise ConfigError(wrong)
    varied = {key: [hydra_value(value) for value in values] for key, values in options["parameters"].items()}
    cases = [hydra_overrides(case) for case in options["cases"] or [{}]]
    in_cases = {override.partition("=")[0] for case in cases for override in case}
    common = list[str]()
    problems = [
        f"sweep={sweep}: {key} means nothing; write {', '.join(KEYS)}"
        for key in options.keys() - {"_target_", *KEYS}
    ]
    for override in OverridesParser.create(loader).parse_overrides(list(arguments)):
        argument = str(override.input_line)
        key, _, value = argument.partition("=")
        if key in (ROOT, SWEEP):
            continue
        if key in in_cases:
            remedy = "leave it out, or write another sweep"
            problems.append(f"{key} is set by the cases of sweep={sweep}; {remedy}")
        elif key in OWN:
            problems.append(f"{key} is set by a sweep itself; leave it out, or name the sweep's folder=NAME")
        elif override.is_sweep_override() and not override.is_discrete_sweep():
            problems.append(f"{argument} has no end of values; write KEY=A,B or KEY=range(FIRST,END)")
        elif override.is_sweep_override():
            varied[key] = [str(item) for item in override.sweep_string_iterator()]
        elif key in varied:
            varied[key] = [value]
        else:
            common.append(argument)
    problems += [f"sweep={sweep} varies {key} and has it in its cases" for key in in_cases & varied.keys()]
    if not varied and not in_cases:
        problems.append("nothing is varied; write sweep=NAME, or a key with several values: KEY=A,B")
    if problems:
        raise ConfigError(problems)
    grids = [[f"{key}={value}" for value in values] for key, values in varied.items()]
    jobs = list(dict.fromkeys((*case, *job) for case in cases for job in product(*grids)))
    name = sweep or "-".join(short_names(varied).values())
    folder = Path(root, options["folder"] or folder_name(name, common))
    named = dict(zip(run_names(jobs), jobs, strict=True))
    return SweepPlan(name, folder, named, tuple(common), options["reference"], hydra_options)


def compose_runs(plan: SweepPlan) -> dict[str, Config]:
    """Composes every run. Raises ConfigError with the problems of overrides of all runs, or of each."""
    configs: dict[str, Config] = {}
    problems: list[str] = []
    with phase("composing runs", len(plan.jobs)):
        for run, job in plan.jobs.items():
            advance()
            try:
                configs[run] = compose_run(plan.overrides(run))
            except ConfigError as error:
                if not problems:
                    compose_run(plan.common)  # raises what would otherwise be reported once for each run
                problems += [f"{' '.join((*plan.common, *job))}: {text}" for text in error.problems]
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return configs


def check_runs(configs: Collection[Config]) -> None:
    """Raises ConfigError with all that is wrong with the runs, or MachineError with all that is missing."""
    if early := dict.fromkeys(text for config in configs for text in early_problems(config)):
        raise ConfigError(list(early))
    with phase("loading libraries"):
        from bapo_lightning.configuration.machine import check_machine
        from bapo_lightning.configuration.validate import validate

    problems: dict[str, None] = {}
    errors: list[MachineError] = []
    with phase("checking runs", len(configs)):
        for config in configs:
            try:
                check_machine(validate(config))
            except MachineError as error:
                errors.append(error)
            except ConfigError as error:
                problems |= dict.fromkeys(error.problems)
            advance()
    if problems:
        raise ConfigError(list(problems))
    if errors:
        raise together(errors)


def together(errors: Sequence[MachineError]) -> MachineError:
    """One error for several runs: each line once, in a run's order; memory as for the run that needs most."""
    largest = max(errors, key=lambda error: error.planned_bytes)
    lines = [(line.partition(":")[0], line, error) for error in errors for line in error.problems]
    needs = {line: name for name, line, error in lines if name != "memory" or error is largest}
    advice = dict.fromkeys(line for error in errors for line in error.advice)
    names = dict.fromkeys(error.name for error in errors)
    in_order = sorted(needs, key=lambda line: NEEDS.index(needs[line]))
    return MachineError(", ".join(names), in_order, list(advice), largest.planned_bytes)


def finished_runs(plan: SweepPlan, configs: Mapping[str, Config]) -> list[str]:
    """The runs that have finished. Raises ConfigError if one had another configuration."""
    finished: list[str] = []
    for run, config in configs.items():
        folder = plan.folder / run
        try:
            stored = read_config(folder)
            if not is_finished(folder, stored, config):
                continue
        except DataError:  # it does not exist, or was killed before it wrote its configuration
            continue
        if changed := changes(stored, config)[1]:
            problems = [f"{run} finished with another configuration: {change}" for change in changed]
            raise ConfigError([*problems, f"move {plan.folder} away, or write another output_root"])
        finished.append(run)
    return finished


_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")
_LONGEST = 120  # characters of a folder name; file systems allow 255 bytes, and `.log` is added
_SHORT = 48  # characters, of a title that fits one line
_HASH_LENGTH = 8


def run_names(jobs: Sequence[Sequence[str]]) -> list[str]:
    """A folder name for each job (its overrides), distinct and the same in every session: the values of its
    keys by their short names, with a hash where characters do not fit a file name.
    """
    pairs = [[override.split("=", 1) for override in job] for job in jobs]
    short = short_names({key for job in pairs for key, _ in job})
    names = ["-".join(f"{short[key]}_{value}" for key, value in job) for job in pairs]
    taken = Counter(name.lower() for name in names)  # some file systems ignore case
    return [_safe(name, job, taken[name.lower()] > 1) for name, job in zip(names, jobs, strict=True)]


def folder_name(sweep: str, overrides: Sequence[str]) -> str:
    """Returns the folder name of a sweep. Further overrides, in any order, give it another folder: they stand
    in the name if that stays short; otherwise a hash does, and sweep.json lists them.
    """
    ordered = sorted(overrides)
    parts = [f"sweep-{sweep}", *(override.replace("=", "_") for override in ordered)]
    whole = _safe("-".join(parts), ordered)
    return whole if len(whole) <= _SHORT else f"{_safe(f'sweep-{sweep}', ordered)}-{_hash(ordered)}"


def _safe(name: str, overrides: Sequence[str], is_taken: bool = False) -> str:
    safe = _UNSAFE.sub("_", name).lstrip(".")
    if safe == name and len(name) <= _LONGEST and not is_taken:
        return name
    return f"{safe[:_LONGEST]}-{_hash(overrides)}"


def _hash(overrides: Sequence[str]) -> str:
    return hashlib.sha256(" ".join(overrides).encode()).hexdigest()[:_HASH_LENGTH]
