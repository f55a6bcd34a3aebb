"""Weights & Biases: one run there for one run folder, across kills and resumes."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from bapo_lightning.callbacks.loggers.run_logger import Row, RunLogger
from bapo_lightning.callbacks.run_manifest import git_commit
from bapo_lightning.run_folder.text_file import write_text

STEP = "trainer/global_step"
MANIFEST = "manifest"  # key of W&B's configuration that holds the run's manifest
ROLLOUTS = "rollouts"  # name of the table
# Statistics in W&B's summary of a run; its default is the last value alone, which is noisy.
SUMMARISED = {
    "train/reward": "last,max,mean",
    "val/*": "last,max",
    "policy/entropy": "last,min,mean",
    "train/grad_norm": "max,mean",
    "bapo/positive_share": "mean",
    "bapo/clip_high": "mean",
    "bapo/clip_low": "mean",
}


class RunWandbLogger(WandbLogger, RunLogger):
    """A run of W&B: its group is the protocol (scale/regime), its job type the algorithm, its tags seed and
    commit.

    Its id is kept in the run folder. A kill loses the tail of W&B's rows, and may leave rows there that a
    resume cuts off; `catch_up` sends the missing rows, and rows that W&B already has are not sent again.
    """

    def __init__(
        self, project: str, offline: bool, group: str, job_type: str, name: str, seed: int, folder: str
    ) -> None:
        """`folder` is the run folder, the seed becomes a tag, the other arguments are W&B's."""
        self._folder = Path(folder, "wandb")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._last_step = -1  # newest step that W&B has from an earlier session
        super().__init__(
            project=project,
            offline=offline,
            group=group,
            job_type=job_type,
            name=name,
            tags=[f"seed-{seed}", f"commit-{git_commit() or 'unknown'}"],
            save_dir=folder,
            id=run_id(self._folder),
            resume=None if offline else "allow",  # an offline run cannot know what the server has
        )

    @rank_zero_only
    def describe(self, config: Mapping[str, Any]) -> None:
        """Sends the resolved configuration, so that W&B can filter by it, and the statistics of its summary.

        An offline directory of an earlier session is renamed to `superseded-...`: the new one will hold all
        of its rows, and `wandb sync` must not upload both.
        """
        for directory in self._folder.glob("offline-run-*"):
            directory.rename(directory.with_name(f"superseded-{directory.name}"))
        self.experiment.config.update(dict(config), allow_val_change=True)
        for metric, summary in SUMMARISED.items():
            self.experiment.define_metric(metric, step_metric=STEP, summary=summary)

    @rank_zero_only
    def conclude(
        self, summary: Mapping[str, Any], manifest: Mapping[str, Any], rollouts: Sequence[Row]
    ) -> None:
        """Sends the run's own summary below `final/`, the manifest, and a table of the sampled texts."""
        import wandb

        run = self.experiment
        run.config.update({MANIFEST: dict(manifest)}, allow_val_change=True)
        final = {f"final/{key}": value for key, value in flat_numbers(summary).items()}
        run.summary.update({"status": manifest.get("status"), **final})
        if rollouts:
            columns: list[str | int] = list(dict.fromkeys(name for row in rollouts for name in row))
            table = [[_cell(row.get(str(name))) for name in columns] for row in rollouts]
            run.log({ROLLOUTS: wandb.Table(columns=columns, data=table)})

    @rank_zero_only
    def catch_up(self, rows: Sequence[Row]) -> None:
        """Sends the rows that W&B lacks."""
        last: Any = self.experiment.summary.get(STEP)  # from the server; an offline run starts empty
        self._last_step = -1 if last is None else int(last)
        for row in rows:
            self.log_metrics({name: value for name, value in row.items() if name != "step"}, row["step"])

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Sends a row unless W&B has it."""
        if step is None or step > self._last_step:
            super().log_metrics(metrics, step)


def run_id(folder: Path) -> str:
    """Returns the id in `folder/run_id`, made from the name of the run folder when it is first needed; unique
    among all runs of a project.
    """
    file = folder / "run_id"
    if not file.exists():
        name = re.sub(r"[^A-Za-z0-9_-]", "-", folder.absolute().parent.name)[-100:]
        write_text(file, f"{name}-{secrets.token_hex(4)}\n")
    return file.read_text(encoding="utf-8").strip()


def flat_numbers(node: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Returns all numbers of a nested mapping by their path, such as reward/last."""
    found: dict[str, float] = {}
    for key, value in node.items():
        if isinstance(value, Mapping):
            found |= flat_numbers(value, f"{prefix}{key}/")
        elif isinstance(value, int | float):
            found[f"{prefix}{key}"] = value
    return found


def _cell(value: Any) -> Any:
    # A column of W&B's tables has one type, and lists are not among those that it shows.
    return " ".join(map(str, value)) if isinstance(value, list) else value
