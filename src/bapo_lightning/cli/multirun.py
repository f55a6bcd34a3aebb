"""The table and the page at the end of Hydra's `--multirun`, which knows its jobs only by their folders."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig

from bapo_lightning.run_folder.find import SWEEP_RECORD
from bapo_lightning.run_folder.text_file import write_json


def job_of_multirun() -> int | None:
    """Number of this job in a run of Hydra's `--multirun`, None in any other."""
    settings = HydraConfig.get()
    return settings.job.num if settings.mode == RunMode.MULTIRUN else None


def record_run(folder: Path) -> None:
    """Notes in the folder of this job where its run is."""
    job_folder = Path(HydraConfig.get().runtime.output_dir)
    write_json(job_folder / SWEEP_RECORD, {"runs": {os.path.relpath(folder, job_folder): {}}})


class MultirunTable(Callback):
    """Compares the runs of all jobs when the last has ended; `hydra.callbacks` of `conf/train.yaml`."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Prints the table, writes the page, and keeps a list of the runs for later comparisons."""
        from bapo_lightning.cli.compare import main as compare

        folder = Path(config.hydra.sweep.dir)
        runs = dict[str, dict[str, Any]]()
        for record in sorted(folder.glob(f"*/{SWEEP_RECORD}")):
            for run in json.loads(record.read_text(encoding="utf-8"))["runs"]:
                runs[os.path.relpath(record.parent / run, folder)] = {}
        if runs:
            write_json(folder / SWEEP_RECORD, {"runs": runs})
            compare([str(folder)])
            print(f'  again, or beside other runs: make compare RUNS="{folder}"', flush=True)
