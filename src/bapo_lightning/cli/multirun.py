"""Hydra's `--multirun`, which knows its jobs only by their folders: how far they are, and at last the table
and the page.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig

from bapo_lightning.errors import BapoLightningError
from bapo_lightning.ranks.launch import leads
from bapo_lightning.report.progress.display import phases_shown
from bapo_lightning.run_folder.find import SWEEP_RECORD
from bapo_lightning.run_folder.text_file import write_json

_launching = False  # whether this process launches jobs that leave the terminal to it


def job_of_multirun() -> int | None:
    """Number of this job in a run of Hydra's `--multirun`, None in any other."""
    settings = HydraConfig.get()
    return settings.job.num if settings.mode == RunMode.MULTIRUN else None


def has_terminal() -> bool:
    """Whether the run of this process may draw on the terminal; jobs that run beside each other may not."""
    return job_of_multirun() is None or _launching


def record_run(folder: Path) -> None:
    """Notes in the folder of this job where its run is; does nothing in a run that is no job."""
    number = job_of_multirun()
    if number is not None:
        job_folder = Path(HydraConfig.get().runtime.output_dir)
        runs: dict[str, Any] = {os.path.relpath(folder, job_folder): {}}
        write_json(job_folder / SWEEP_RECORD, {"job": number, "runs": runs})


def _knows_jobs(config: DictConfig) -> bool:
    """Whether the command line tells the jobs, and they run on this machine: by Hydra's sweeper, and its
    launcher or joblib's.
    """
    sweeper, launcher = config.hydra.sweeper, str(config.hydra.launcher._target_)
    is_own = str(sweeper._target_).endswith("BasicSweeper") and not sweeper.get("params")
    return is_own and launcher.endswith(("BasicLauncher", "JoblibLauncher"))


class MultirunTable(Callback):
    """Shows how far the jobs are, and compares their runs when the last has ended; `hydra.callbacks` of
    `conf/train.yaml`.
    """

    def __init__(self) -> None:
        self._shown = ExitStack()

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Ends with 1 where a job cannot work. Shows a row for each, unless the jobs write to the terminal
        themselves, as joblib's do.
        """
        from bapo_lightning.runs.sweeps.multirun import check_jobs, jobs_followed

        if _knows_jobs(config):
            try:
                with phases_shown(leads()):
                    check_jobs(config.hydra.overrides.task)
            except BapoLightningError as error:
                if leads():
                    print(f"error: {error}", file=sys.stderr)
                sys.exit(1)  # Hydra only warns of other exceptions of a callback
        global _launching
        _launching = "joblib" not in config.hydra.launcher._target_
        if _launching:
            self._shown.enter_context(
                jobs_followed(Path(config.hydra.sweep.dir), config.hydra.overrides.task)
            )

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Prints the table, writes the page, and keeps a list of the runs for later comparisons."""
        from bapo_lightning.cli.compare import main as compare

        self._shown.close()
        folder = Path(config.hydra.sweep.dir)
        runs = dict[str, dict[str, Any]]()
        for record in sorted(folder.glob(f"*/{SWEEP_RECORD}")):
            for run in json.loads(record.read_text(encoding="utf-8"))["runs"]:
                runs[os.path.relpath(record.parent / run, folder)] = {}
        if runs:
            write_json(folder / SWEEP_RECORD, {"runs": runs})
            compare([str(folder)])
            print(f'  again, or beside other runs: make compare RUNS="{folder}"', flush=True)
