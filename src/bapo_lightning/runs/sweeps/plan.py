"""The runs of a sweep: `conf/sweeps/<name>.yaml` and the command line, checked before the first run.

    cases (settings that belong together) x parameters (every combination) -> one tuple of overrides per run

An override on the command line replaces the values of a key that the sweep varies (`seed=0,1`). Any other key
with several values, or with Hydra's `range(...)`, is varied as well. A single value holds for all runs, and
the sweep then has a folder of its own, which `folder=NAME` names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, cast

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bapo_lightning.configuration.changes import changes
from bapo_lightning.configuration.compose import compose_run
from bapo_lightning.configuration.conf_dir import conf_dir
from bapo_lightning.configuration.overrides import hydra_overrides, hydra_value
from bapo_lightning.errors import ConfigError, DataError
from bapo_lightning.phases import advance
from bapo_lightning.run_folder.record import read_config
from bapo_lightning.runs.resume import is_finished
from bapo_lightning.runs.sweeps.names import folder_name, run_names

Config = dict[str, Any]
Job = tuple[str, ...]
SWEEP_KEYS = {"parameters", "cases", "parallel_runs", "reference"}
FOLDERS = {"sweep": "sweeps", "launcher": "sweeps/launcher"}  # below conf/
ROOT, SWEEP, LAUNCHER, FOLDER = "output_root", "sweep", "launcher", "folder"


@dataclass(frozen=True)
class Plan:
    """The runs of a sweep by name; a run's folder is `folder`/name."""

    name: str
    folder: Path
    jobs: dict[str, Job]  # overrides that set a run apart
    common: Job  # overrides of all runs
    launcher: Config  # file of conf/sweeps/launcher with the changes of the command line
    parallel_runs: int | None  # number of runs at a time that the sweep asks for
    reference: str | None  # setting that the others are compared with

    def overrides(self, run: str) -> Job:
        """Returns all overrides that a run is started with."""
        folder = f"run_folder={hydra_value(str(self.folder / run))}"
        group = f"group={hydra_value(self.folder.name)}"
        return (group, *self.common, *self.jobs[run], folder, "resume=auto")


def read_plan(arguments: Sequence[str]) -> Plan:
    """Reads the command line and the sweep's file. Raises ConfigError with all that is wrong with them."""
    own, swept, common = _sort_overrides(arguments)
    name = own.get(SWEEP, "nothing")
    content = _read_choice("sweep", name)
    if unknown := sorted(set(content) - SWEEP_KEYS):
        known = ", ".join(sorted(SWEEP_KEYS))
        raise ConfigError([f"conf/sweeps/{name}.yaml: {', '.join(unknown)} means nothing; write {known}"])
    listed = content.get("parameters") or {}
    parameters = {key: [hydra_value(value) for value in values] for key, values in listed.items()}
    cases = [hydra_overrides(case) for case in content.get("cases") or [{}]]
    for override in [*common]:
        key, _, value = override.partition("=")
        if key in parameters:
            swept[key] = [value]
            common.remove(override)
    in_cases, elsewhere = _keys(*cases), {*parameters, *swept, *_keys(common)}
    if clashes := sorted(in_cases & elsewhere):
        remedy = f"is set by the cases of sweep={name}; leave it out, or write another sweep"
        raise ConfigError([f"{key} {remedy}" for key in clashes])
    grids = [[f"{key}={value}" for value in values] for key, values in (parameters | swept).items()]
    jobs = list(dict.fromkeys((*case, *job) for case in cases for job in product(*grids)))
    return Plan(
        name=name,
        folder=Path(own.get(ROOT, "outputs"), own.get(FOLDER) or folder_name(name, common)),
        jobs=dict(zip(run_names(jobs), jobs, strict=True)),
        common=tuple(common),
        launcher=read_launcher(own),
        parallel_runs=content.get("parallel_runs"),
        reference=content.get("reference"),
    )


def compose_runs(plan: Plan) -> dict[str, Config]:
    """Composes the configuration of every run.

    Raises:
        ConfigError: with what is wrong with the overrides of all runs, or else with each run's own.
    """
    found: dict[str, Config] = {}
    problems: list[str] = []
    for run, job in plan.jobs.items():
        advance()
        try:
            found[run] = compose_run(plan.overrides(run))
        except ConfigError as error:
            if not problems:
                compose_run(plan.common)  # raises what would otherwise be told once for each run
            problems += [f"{' '.join((*plan.common, *job))}: {text}" for text in error.problems]
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return found


def finished_runs(plan: Plan, configs: dict[str, Config]) -> list[str]:
    """Returns the runs that have already finished.

    Raises:
        ConfigError: one of them had another configuration, and is therefore another run.
    """
    finished: list[str] = []
    changed: dict[str, list[str]] = {}
    for run, config in configs.items():
        folder = plan.folder / run
        try:
            stored = read_config(folder)
            if not is_finished(folder, stored, config):
                continue
        except DataError:  # it does not exist, or was killed before it wrote its configuration
            continue
        for change in changes(stored, config)[1]:
            changed.setdefault(change, []).append(run)
        finished.append(run)
    if changed:
        problems = []
        for change, runs in changed.items():
            who = runs[0] if len(runs) == 1 else f"{runs[0]} and {len(runs) - 1} more"
            problems.append(f"{who} finished with another configuration: {change}")
        raise ConfigError([*problems, f"move {plan.folder} away, or write another output_root"])
    return finished


def _keys(*jobs: Iterable[str]) -> set[str]:
    return {override.partition("=")[0] for job in jobs for override in job}


def _sort_overrides(arguments: Iterable[str]) -> tuple[dict[str, str], dict[str, list[str]], list[str]]:
    """Sorts overrides into the sweep's own keys, keys with several values, and all others."""
    parser = OverridesParser.create()
    own: dict[str, str] = {}
    swept: dict[str, list[str]] = {}
    common: list[str] = []
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key in (ROOT, SWEEP, LAUNCHER, FOLDER) or key.startswith(f"{LAUNCHER}."):
            own[key] = value
            continue
        try:
            override = parser.parse_override(argument)
        except HydraException as error:
            reason = str(error).splitlines()[0]
            raise ConfigError([f"{argument} cannot be read ({reason}); write KEY=VALUE"]) from None
        if override.is_sweep_override():
            swept[key] = [str(item) for item in override.sweep_string_iterator()]
        else:
            common.append(argument)
    return own, swept, common


def _read_choice(group: str, name: str) -> Config:
    choices = {path.stem: path for path in Path(conf_dir(), FOLDERS[group]).glob("*.yaml")}
    if name not in choices:
        raise ConfigError([f"{group}={name} is no {group}; write one of {', '.join(sorted(choices))}"])
    return yaml.safe_load(choices[name].read_text(encoding="utf-8"))


def read_launcher(own: Mapping[str, str]) -> Config:
    """Reads the file of `launcher` in `own`, with the changes of its `launcher.KEY`, or the local one.

    Raises:
        ConfigError: a name or a key does not exist.
    """
    name = own.get(LAUNCHER, "local")
    content = OmegaConf.create(_read_choice("launcher", name))
    OmegaConf.set_struct(content, True)
    if "parameters" in content:
        OmegaConf.set_struct(content.parameters, False)  # passed on to submitit, which knows its own keys
    problems = []
    for key, text in own.items():
        if key.startswith(f"{LAUNCHER}."):
            try:
                content.merge_with_dotlist([f"{key.removeprefix(f'{LAUNCHER}.')}={text}"])
            except OmegaConfBaseException:
                problems.append(f"{key}: launcher={name} has no such key; write one of {', '.join(content)}")
    if problems:
        raise ConfigError(problems)
    return {"name": name, **cast(Config, OmegaConf.to_container(content))}
