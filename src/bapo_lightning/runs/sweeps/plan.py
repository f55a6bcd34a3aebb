"""What a sweep will run: `conf/sweep/<name>.yaml` and the command line, checked as a whole before the first
run starts.

    cases (settings that belong together) x parameters (every combination) -> one tuple of overrides per run

An override on the command line of a key that the sweep varies replaces its values (`seed=0,1`); one with
several values, or Hydra's `range(...)`, is varied too; any other holds for all runs, which then have a folder
of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from bapo_lightning.configuration.conf_dir import conf_dir
from bapo_lightning.errors import ConfigError, DataError
from bapo_lightning.runs.sweeps.names import folder_name, hydra_value, run_names

Config = dict[str, Any]
Job = tuple[str, ...]
SWEEP_KEYS = {"parameters", "cases", "parallel_runs", "reference"}
FOLDERS = {"sweep": "sweeps", "launcher": "sweeps/launcher"}  # below conf/
ROOT, SWEEP, LAUNCHER = "output_root", "sweep", "launcher"


@dataclass(frozen=True)
class Plan:
    """The runs of a sweep, by the names of their folders below `folder`."""

    name: str
    folder: Path
    jobs: dict[str, Job]  # overrides that set a run apart
    common: Job  # overrides of all runs
    launcher: Config  # of conf/launcher, with the command line's changes
    parallel_runs: int | None  # the sweep's own wish
    reference: str | None  # setting that differences are taken to

    def overrides(self, run: str) -> Job:
        """All that a run is started with."""
        return (
            *self.common,
            *self.jobs[run],
            f"run_folder={hydra_value(str(self.folder / run))}",
            "resume=auto",
        )


def read_plan(arguments: Sequence[str]) -> Plan:
    """Raises ConfigError with all that is wrong with the command line or the sweep's file."""
    own, swept, common = _sort_overrides(arguments)
    name = own.get(SWEEP, "nothing")
    content = _read_choice("sweep", name, SWEEP_KEYS)
    parameters = {
        key: [hydra_value(value) for value in values]
        for key, values in (content.get("parameters") or {}).items()
    }
    cases = [
        [f"{key}={hydra_value(value)}" for key, value in case.items()]
        for case in content.get("cases") or [{}]
    ]
    in_cases = {override.partition("=")[0] for case in cases for override in case}
    for override in [*common]:
        key, _, value = override.partition("=")
        if key in parameters:
            swept[key] = [value]
            common.remove(override)
    clashes = sorted(in_cases & ({*parameters, *swept} | {override.partition("=")[0] for override in common}))
    if clashes:
        raise ConfigError(
            [
                f"{key} is set by the cases of sweep={name}; leave it out, or write another sweep"
                for key in clashes
            ]
        )
    grids = [[f"{key}={value}" for value in values] for key, values in (parameters | swept).items()]
    jobs = list(dict.fromkeys((*case, *job) for case in cases for job in product(*grids)))
    folder = Path(own.get(ROOT, "outputs"), folder_name(name, common))
    launcher = read_launcher(
        own.get(LAUNCHER, "local"),
        {key: value for key, value in own.items() if key.startswith(f"{LAUNCHER}.")},
    )
    return Plan(
        name=name,
        folder=folder,
        jobs=dict(zip(run_names(jobs), jobs, strict=True)),
        common=tuple(common),
        launcher=launcher,
        parallel_runs=content.get("parallel_runs"),
        reference=content.get("reference"),
    )


def compose_runs(plan: Plan) -> dict[str, Config]:
    """The resolved configuration of every run. Raises ConfigError with a complaint for each that cannot be
    composed.
    """
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from bapo_lightning.configuration.compose import resolve

    found, problems = {}, []
    with initialize_config_dir(conf_dir(), version_base="1.3"):
        for run in plan.jobs:
            try:
                found[run] = resolve(compose("train", overrides=list(plan.overrides(run))))
            except (HydraException, OmegaConfBaseException) as error:
                problems.append(f"{' '.join((*plan.common, *plan.jobs[run]))}: {str(error).splitlines()[0]}")
            except ConfigError as error:
                problems += error.problems
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return found


def finished_runs(plan: Plan, configs: dict[str, Config]) -> list[str]:
    """Runs that reached their end before.

    Raises:
        ConfigError: one of them had another configuration, so that it is not the run that is asked for.
    """
    from bapo_lightning.configuration.changes import changes
    from bapo_lightning.run_folder.record import read_config
    from bapo_lightning.runs.resume import is_finished

    finished: list[str] = []
    changed: dict[str, list[str]] = {}
    for run, config in configs.items():
        folder = plan.folder / run
        try:
            stored = read_config(folder)
            if not is_finished(folder, stored, config):
                continue
        except DataError:  # it does not exist, or was killed before it was a run
            continue
        for change in changes(stored, config)[1]:
            changed.setdefault(change, []).append(run)
        finished.append(run)
    if changed:
        raise ConfigError([
            *(f"{_several(runs)} finished with another configuration: {change}" for change, runs in changed.items()),
            f"move {plan.folder} away, or write another output_root",
        ])  # fmt: skip
    return finished


def _several(runs: Sequence[str]) -> str:
    return runs[0] if len(runs) == 1 else f"{runs[0]} and {len(runs) - 1} more"


def _sort_overrides(arguments: Iterable[str]) -> tuple[dict[str, str], dict[str, list[str]], list[str]]:
    """(the sweep's own keys, keys with several values, all others)."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    own: dict[str, str] = {}
    swept: dict[str, list[str]] = {}
    common: list[str] = []
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key in (ROOT, SWEEP, LAUNCHER) or key.startswith(f"{LAUNCHER}."):
            own[key] = value
            continue
        try:
            override = parser.parse_override(argument)
        except HydraException as error:
            raise ConfigError(
                [f"{argument} cannot be read ({str(error).splitlines()[0]}); write KEY=VALUE"]
            ) from None
        if override.is_sweep_override():
            swept[key] = [str(item) for item in override.sweep_string_iterator()]
        else:
            common.append(argument)
    return own, swept, common


def _read_choice(group: str, name: str, known: set[str] | None = None) -> Config:
    choices = {path.stem: path for path in Path(conf_dir(), FOLDERS[group]).glob("*.yaml")}
    if name not in choices:
        raise ConfigError([f"{group}={name} is no {group}; write one of {', '.join(sorted(choices))}"])
    content = yaml.safe_load(choices[name].read_text(encoding="utf-8"))
    if known is not None and (unknown := sorted(set(content) - known)):
        raise ConfigError(
            [f"{choices[name]}: {', '.join(unknown)} means nothing; write {', '.join(sorted(known))}"]
        )
    return content


def read_launcher(name: str, overrides: dict[str, str]) -> Config:
    """conf/launcher/<name>.yaml with the `launcher.KEY` of the command line. Raises ConfigError for a name or
    a key that it has not.
    """
    content = _read_choice("launcher", name)
    problems = []
    for key, text in overrides.items():
        *parents, last = key.split(".")[1:]
        node = content
        for parent in parents:
            node = node.get(parent, {}) if isinstance(node, dict) else {}
        if not isinstance(node, dict) or (last not in node and parents != ["parameters"]):
            problems.append(f"{key}: launcher={name} has no such key; write one of {', '.join(content)}")
            continue
        node[last] = yaml.safe_load(text)
    if problems:
        raise ConfigError(problems)
    return {"name": name, **content}
