"""Several runs, by Hydra's `--multirun`: what its sweeper does here.

conf/sweep/<name>.yaml, overrides -> plan, checked as a whole -> hydra/launcher -> table and page
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.types import HydraContext, RunMode, TaskFunction
from omegaconf import DictConfig, OmegaConf

from bapo_lightning.configuration.compose import has_default_folder, hydra_value, run_folder
from bapo_lightning.runs.command import command, end_explanations
from bapo_lightning.system.errors import ConfigError
from bapo_lightning.system.printable import as_typed
from bapo_lightning.system.ranks.launch import leads
from bapo_lightning.system.stopping import as_usual, stop
from hydra_plugins.bapo_lightning import RunsSweeper

if TYPE_CHECKING:
    from bapo_lightning.tools.sweeps.plan import SweepPlan

SHORT = {"launcher=": "hydra/launcher=", "launcher.": "hydra.launcher.", "folder=": "hydra.sweeper.folder="}
MULTIRUN = {"-m", "--multirun"}
SEARCHES = {f"hydra/sweeper={name}" for name in ("optuna", "ax", "nevergrad")}


def with_sweeps(arguments: Sequence[str]) -> list[str]:
    """Lets Hydra find the sweeper, and returns the command line in its syntax: `sweep=` makes it a multirun,
    and a multirun uses our sweeper unless another is chosen.
    """
    Plugins.instance().register(RunsSweeper)  # Hydra does not see editable installs
    if not any(text.startswith("sweep=") or text in MULTIRUN for text in arguments):
        return [*arguments]
    texts = [*map(in_hydra, arguments)]
    for text in SEARCHES & {*texts}:
        remedy = "leave it out, or call fit in the objective of a search (docs/sweeps.md)"
        raise ConfigError([f"{text} needs a number from each run, and a run gives a folder; {remedy}"])
    keys = {text.partition("=")[0] for text in texts}
    if "hydra/sweeper" not in keys:
        texts += ["hydra/sweeper=runs", *(["hydra/launcher=local"] if "hydra/launcher" not in keys else [])]
    return [*texts, *(["-m"] if not keys & MULTIRUN else [])]


def in_hydra(argument: str) -> str:
    """An override in Hydra's syntax: `hydra/launcher=ray` for `launcher=ray`."""
    return re.sub(r"^(launcher[.=]|folder=)", lambda match: SHORT[match[1]], argument)


def sweep(
    context: HydraContext, task_function: TaskFunction, config: DictConfig, arguments: Sequence[str]
) -> NoReturn:
    """Runs what has not finished, compares all, and ends the process, with 1 if a run failed and 2 if
    nothing could be started. The first three arguments are Hydra's; `arguments` are the overrides of the
    command line without Hydra's own.
    """

    @command(2)
    def run() -> int:
        from bapo_lightning.tools.sweeps.launchers import launcher_of
        from bapo_lightning.tools.sweeps.plan import read_plan
        from bapo_lightning.tools.sweeps.run import print_failures, run_plan

        if "TORCHELASTIC_RUN_ID" in os.environ:
            raise ConfigError(["torchrun starts the ranks of one run; leave it out for several"])
        hydra = config.hydra
        options: Any = OmegaConf.to_container(hydra.sweeper, resolve=False)
        root: Any = OmegaConf.select(config, "output_root")
        root = OmegaConf.to_container(root) if OmegaConf.is_config(root) else root
        given = hydra.runtime.choices.get("sweep"), options, arguments, root
        plan = read_plan(*given, context.config_loader, hydra_options(hydra))
        plugin = partial(Plugins.instance().instantiate_launcher, context, task_function, config)
        codes = run_plan(plan, *launcher_of(hydra.launcher, plugin))
        if any(codes.get(run, 0) == 0 for run in plan.jobs):  # runs without a code finished before
            compare(plan)
        return print_failures(plan, codes)

    end_explanations()
    stop.answer = as_usual  # each run handles signals itself
    sys.exit(run() if leads() else 1)  # the first process reports why


def compare(plan: SweepPlan) -> None:
    """Prints the table and writes the page."""
    from bapo_lightning.system.run_folder.find import find_runs
    from bapo_lightning.tools.commands.compare import main

    main([*([f"--reference={plan.reference}"] if plan.reference else []), "--", str(plan.folder)])
    if earlier := len(find_runs([str(plan.folder)])) - len(plan.jobs):
        print(f"  runs of earlier calls in this folder: {earlier}")
    rerun = as_typed(f'compare RUNS="{plan.folder}"', f'compare "{plan.folder}"')
    print(f"  again, or with other runs: {rerun}", flush=True)


def is_job() -> bool:
    """Whether the main function was called by one of Hydra's own launchers."""
    return HydraConfig.get().mode == RunMode.MULTIRUN


def run_job(plain: dict[str, Any]) -> None:
    """Starts the run of this job as a process. Raises JobFailed if its exit code is not 0."""
    from bapo_lightning.tools.sweeps.job import JobFailed, TrainJob

    hydra: Any = HydraConfig.get()
    folder = run_folder(plain)
    if has_default_folder(plain):  # of another sweeper, all of whose jobs have the same time
        folder = folder.with_name(f"{folder.name}-{hydra.job.num}")
    overrides = *hydra.overrides.task, f"run_folder={hydra_value(str(folder))}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    if code := TrainJob((*hydra_options(hydra), *overrides), folder)():
        raise JobFailed(code)


def hydra_options(hydra: DictConfig) -> tuple[str, ...]:
    """Options that a run needs to find the same configuration files."""
    folders = [source.path for source in hydra.runtime.config_sources if source.provider == "command-line"]
    further = [text for text in hydra.overrides.hydra if text.startswith("hydra.searchpath=")]
    return (*(f"--config-dir={folder}" for folder in folders), *further)
