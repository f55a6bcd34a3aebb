"""`python -m bapo_lightning.cli.train experiment=quickstart algorithm=grpo`: the main job.

Heavy imports come after the configuration is composed, so that `--help` and a misspelt option answer at once.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from bapo_lightning.cli.command import hydra_command
from bapo_lightning.cli.multirun import has_terminal, job_of_multirun, record_run
from bapo_lightning.configuration.compose import (
    has_default_folder,
    requested_ranks,
    resolve,
    run_folder,
    wants_display,
)
from bapo_lightning.errors import BapoLightningError, RankLost
from bapo_lightning.orphans import end_with_starter
from bapo_lightning.phases import phase
from bapo_lightning.ranks.launch import STARTED_BY_RUN, launch, leads, starts_ranks
from bapo_lightning.report.progress.display import hidden, phases_shown
from bapo_lightning.runs.resume import run_to_continue

# Read by OpenMP when torch loads: threads that spin while they wait stop a small model as soon as anything
# else runs on the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@hydra_command("train")
def main(config: DictConfig) -> int:
    """Trains in this process, or in as many as the run has ranks."""
    end_with_starter()  # a rank or a run of a sweep saves and ends if what started it is gone
    try:
        plain = resolve(config)
        job = job_of_multirun()
        if job is not None and has_default_folder(plain):
            config.run_folder = f"{run_folder(plain)}-{job}"  # other jobs may start in the same second
            plain = resolve(config)
        record_run(run_folder(plain))
        devices, nodes = requested_ranks(plain)
        if plain["ranks"] is not None and STARTED_BY_RUN not in os.environ:
            code = launch_elsewhere(plain)
        elif starts_ranks(devices, nodes):
            check_here(plain)
            code = launch(devices, arguments(plain))
        else:
            code = train_here(config, plain)
        return code if leads() else 0  # a rank with another code would be taken for lost
    except KeyboardInterrupt:  # after training began the run itself ends in order
        if leads():
            print("interrupted", file=sys.stderr)
        return 130
    except BapoLightningError as error:
        # The process that started the ranks says which one is gone.
        lost = isinstance(error, RankLost) and STARTED_BY_RUN in os.environ
        if leads() and not lost:  # rank 0 knows of every rank's error
            raise
        return 1


def check_here(plain: dict[str, Any]) -> None:
    """Raises ConfigError for what this machine cannot run, once and before ranks start to find it out."""
    with nullcontext() if has_terminal() else hidden(), phases_shown(wants_display(plain)):
        with phase("loading libraries"):
            from bapo_lightning.configuration.machine import check_machine
            from bapo_lightning.configuration.validate import validate
        with phase("checking the configuration"):
            check_machine(validate(plain))


def launch_elsewhere(plain: dict[str, Any]) -> int:
    """Trains where `ranks` starts them, which need not be like this machine; returns the exit code."""
    with nullcontext() if has_terminal() else hidden(), phases_shown(wants_display(plain)):
        with phase("loading libraries"):
            from bapo_lightning.configuration.rank_rules import rank_launcher
            from bapo_lightning.configuration.validate import read_ranked
        with phase("checking the configuration"):
            config = read_ranked(plain)
    launcher = rank_launcher(config)
    assert launcher is not None
    return launcher.launch(config, arguments(plain))


def train_here(config: DictConfig, plain: dict[str, Any]) -> int:
    """Trains in this process; returns the exit code."""
    with nullcontext() if has_terminal() else hidden():
        with phases_shown(wants_display(plain)), phase("loading libraries"):
            from bapo_lightning.runs.train import train

        return train(plain, lambda: continued(config))[0]


def arguments(plain: dict[str, Any]) -> list[str]:
    """Arguments of each rank's command: this process's, or those of this job of a multirun."""
    if job_of_multirun() is None:
        return sys.argv[1:]
    return [*HydraConfig.get().overrides.task, f"run_folder={run_folder(plain)}"]


def continued(config: DictConfig) -> dict[str, Any]:
    """The resolved configuration, with the run folder that `resume` means."""
    folder = run_to_continue(config.resume, resolve(config))
    if folder is not None:
        config.run_folder = str(folder)  # other keys refer to it
        record_run(folder)
    return resolve(config)


if __name__ == "__main__":
    sys.exit(main())
