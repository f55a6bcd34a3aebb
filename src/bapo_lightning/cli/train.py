"""`python -m bapo_lightning.cli.train experiment=quickstart algorithm=grpo`: the main job.

Heavy imports come after the configuration is composed, so that `--help` and a misspelt option answer at once.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from bapo_lightning.cli.command import hydra_command
from bapo_lightning.configuration.compose import has_default_folder, requested_ranks, resolve, run_folder
from bapo_lightning.errors import BapoLightningError, RankLost
from bapo_lightning.orphans import end_with_parent
from bapo_lightning.ranks.launch import STARTED_BY_RUN, launch, leads, starts_ranks
from bapo_lightning.runs.resume import run_to_continue

# Read by OpenMP when torch loads: threads that spin while they wait stop a small model as soon as anything
# else runs on the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@hydra_command("train")
def main(config: DictConfig) -> int:
    """Trains in this process, or in as many as the run has ranks."""
    if STARTED_BY_RUN in os.environ:  # a rank; it saves and ends if the process that started it is gone
        end_with_parent(signal.SIGTERM)
    try:
        plain = resolve(config)
        job = job_of_multirun()
        if job is not None and has_default_folder(plain):
            config.run_folder = f"{run_folder(plain)}-{job}"  # its fellows may start within the same second
            plain = resolve(config)
        devices, nodes = requested_ranks(plain)
        if starts_ranks(devices, nodes):
            return launch(devices, arguments(plain))
        from bapo_lightning.runs.train import train

        train(plain, lambda: continued(config))
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
    return 0


def job_of_multirun() -> int | None:
    """Number of this job in a run of Hydra's `--multirun`, None in any other."""
    settings = HydraConfig.get()
    return settings.job.num if settings.mode == RunMode.MULTIRUN else None


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
    return resolve(config)


if __name__ == "__main__":
    sys.exit(main())
