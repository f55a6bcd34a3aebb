"""Weights & Biases: one run there for one run folder, whatever happens to the process in between."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from bapo_lightning.callbacks.run_manifest import git_commit
from bapo_lightning.run_folder.text_file import write_text

STEP = "trainer/global_step"
MANIFEST = "manifest"  # key of W&B's configuration that holds the run's manifest
ROLLOUTS = "rollouts"  # name of the table
# What W&B's summary of a run shows: by default it keeps the last value alone, which is noisy and not the
# best.
SUMMARISED = {
    "train/reward": "last,max,mean",
    "val/*": "last,max",
    "policy/entropy": "last,min,mean",
    "train/grad_norm": "max,mean",
    "bapo/positive_share": "mean",
    "bapo/clip_high": "mean",
    "bapo/clip_low": "mean",
}


class RunWandbLogger(WandbLogger):
    """A run whose group is the protocol (scale/regime), whose job type is the algorithm, tagged with seed and
    commit.

    Its id is kept in the run folder. A kill loses the tail of what W&B has of a run, and may leave rows there
    that a resume has cut off; `catch_up` sends what is missing, and rows that W&B has already are not sent
    again.
    """

    def __init__(
        self, project: str, offline: bool, group: str, job_type: str, name: str, seed: int, folder: str
    ) -> None:
        """`folder` is the run folder; the other arguments are W&B's, but for the seed, which becomes a
        tag.
        """
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
        """Send the resolved configuration, by which W&B can filter, and say what its summary of each metric
        shall be.

        Comes before any row. An offline directory of an earlier session is renamed to `superseded-...`,
        because the new one will hold all of its rows: `wandb sync` must not upload both.
        """
        for directory in self._folder.glob("offline-run-*"):
            directory.rename(directory.with_name(f"superseded-{directory.name}"))
        self.experiment.config.update(dict(config), allow_val_change=True)
        for metric, summary in SUMMARISED.items():
            self.experiment.define_metric(metric, step_metric=STEP, summary=summary)

    @rank_zero_only
    def conclude(
        self, summary: Mapping[str, Any], manifest: Mapping[str, Any], rollouts: Sequence[Mapping[str, Any]]
    ) -> None:
        """Send what is known at the end: the run's own summary under `final/`, the manifest, and the table of
        sampled texts.

        Args:
            summary: of `report.summary.write_summary`.
            manifest: as it is at the end.
            rollouts: rows of rollouts.jsonl.
        """
        import wandb

        run = self.experiment
        run.config.update({MANIFEST: dict(manifest)}, allow_val_change=True)
        run.summary.update(
            {
                "status": manifest.get("status"),
                **{f"final/{key}": value for key, value in flat_numbers(summary).items()},
            }
        )
        if rollouts:
            columns: list[str | int] = list(dict.fromkeys(name for row in rollouts for name in row))
            table = [[_cell(row.get(str(name))) for name in columns] for row in rollouts]
            run.log({ROLLOUTS: wandb.Table(columns=columns, data=table)})

    @rank_zero_only
    def catch_up(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Bring W&B to where a resumed run is.

        Args:
            rows: of metrics.jsonl, up to the checkpoint.
        """
        last: Any = self.experiment.summary.get(STEP)  # of the server; an offline run starts empty
        self._last_step = -1 if last is None else int(last)
        for row in rows:
            self.log_metrics({name: value for name, value in row.items() if name != "step"}, row["step"])

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Send a row unless W&B has it."""
        if step is None or step > self._last_step:
            super().log_metrics(metrics, step)


def run_id(folder: Path) -> str:
    """The id that `folder/run_id` keeps, made from the name of the run folder at the first time; unique among
    all runs of a project.
    """
    file = folder / "run_id"
    if not file.exists():
        name = re.sub(r"[^A-Za-z0-9_-]", "-", folder.absolute().parent.name)[-100:]
        write_text(file, f"{name}-{secrets.token_hex(4)}\n")
    return file.read_text(encoding="utf-8").strip()


def flat_numbers(node: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """All numbers of a nested mapping by their path, such as reward/last."""
    found: dict[str, float] = {}
    for key, value in node.items():
        if isinstance(value, Mapping):
            found |= flat_numbers(value, f"{prefix}{key}/")
        elif isinstance(value, int | float):
            found[f"{prefix}{key}"] = value
    return found


def _cell(value: Any) -> Any:
    # A column of W&B's tables has one type, and lists are none that it shows.
    return " ".join(map(str, value)) if isinstance(value, list) else value
