"""`python -m bapo_lightning.cli.train experiment=quickstart algorithm=grpo`: the main job.

Heavy imports come after the configuration is composed, so that `--help` and misspelt options answer at once.
"""

from __future__ import annotations

import os
import sys
from typing import Any

if __name__ == "__main__":  # before the imports below, which take a second
    from bapo_lightning.system.stopping import stop

    stop.listen()

from omegaconf import DictConfig

from bapo_lightning.configuration.compose import requested_ranks, resolve, wants_display
from bapo_lightning.configuration.early import refuse_early, refuse_missing_files
from bapo_lightning.report.progress.display import displayed_phases
from bapo_lightning.runs.command import end_with, hydra_command
from bapo_lightning.runs.resume import AUTO, run_to_continue
from bapo_lightning.system.errors import BapoLightningError, LaunchError, RankLost
from bapo_lightning.system.orphans import end_with_parent, end_with_starter, starter
from bapo_lightning.system.phases import phase
from bapo_lightning.system.ranks.launch import (
    STARTED_BY_RUN,
    forget_left_over_ranks,
    has_launcher,
    launch,
    leads,
    starts_ranks,
)
from bapo_lightning.system.stopping import at_once, heard, record_signal
from bapo_lightning.tools.commands.multirun import is_job, run_job, with_sweeps

# Read by OpenMP when torch loads: threads that spin while they wait slow down a small model very much as soon
# as anything else runs on the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def main() -> int:
    """Trains in this process, or in one process per rank of the run."""
    forget_left_over_ranks()
    with heard(at_once if leads() else record_signal):  # a recorded signal ends the run with its first update
        return composed()


@hydra_command("train", rewrite=with_sweeps)
def composed(config: DictConfig) -> int:
    """Trains with a composed configuration."""
    return run(config)


def run(config: DictConfig) -> int:
    """Trains; returns the exit code of this process."""
    if is_job():
        run_job(resolve(config))
        return 0
    end_with_starter()  # a run of a sweep saves and ends if its starter is gone
    if has_launcher():
        end_with_parent(starter() if STARTED_BY_RUN in os.environ else None)
    try:
        code = train(config)
        return code if leads() else 0  # a rank with another code would count as lost
    except BapoLightningError as error:
        # The process that started the ranks reports which one is gone.
        lost = isinstance(error, RankLost) and STARTED_BY_RUN in os.environ
        if (leads() or isinstance(error, LaunchError)) and not lost:  # rank 0 knows every rank's error
            raise
        return 1


def train(config: DictConfig) -> int:
    """Trains here, or starts the ranks after checking this machine for their needs."""
    plain = resolve(config)
    refuse_early(plain)
    refuse_missing_files(plain)
    if plain["resume"] not in (None, AUTO):
        run_to_continue(plain["resume"], plain)  # its errors need no library
    devices, nodes = requested_ranks(plain)
    elsewhere = plain["ranks"] is not None and STARTED_BY_RUN not in os.environ
    if elsewhere or starts_ranks(devices, nodes):
        with displayed_phases(wants_display(plain)):
            with phase("loading libraries"):
                from bapo_lightning.configuration.machine import check_machine
                from bapo_lightning.configuration.rank_rules import rank_launcher
                from bapo_lightning.configuration.validate import validate
            with phase("checking the configuration"):
                if elsewhere:  # on machines that may differ from this one
                    ranked = validate(plain, "ranks")
                else:
                    check_machine(validate(plain))
        if not elsewhere:
            return launch(devices, sys.argv[1:])
        launcher = rank_launcher(ranked)
        assert launcher is not None
        return launcher.launch(ranked, sys.argv[1:])
    with displayed_phases(wants_display(plain)), phase("loading libraries"):
        from bapo_lightning.runs import train as training
    return training.train(plain, lambda: _with_folder(config))[0]


def _with_folder(config: DictConfig) -> dict[str, Any]:
    # Resolved, with the run folder that `resume` means.
    folder = run_to_continue(config.resume, resolve(config))
    if folder is not None:
        config.run_folder = str(folder)  # other keys refer to it
    return resolve(config)


if __name__ == "__main__":
    end_with(main)
