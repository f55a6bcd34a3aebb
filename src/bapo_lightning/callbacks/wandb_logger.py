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

STEP = "trainer/global_step"


class RunWandbLogger(WandbLogger):
    """A run whose group is the protocol (scale/regime), whose job type is the algorithm, tagged with seed and commit.

    Its id is kept in the run folder. A kill loses the tail of what W&B has of a run, and may leave rows there that a resume has cut off;
    `catch_up` sends what is missing, and rows that W&B has already are not sent again.
    """

    def __init__(self, project: str, offline: bool, group: str, job_type: str, name: str, seed: int, folder: str) -> None:
        """`folder` is the run folder; the other arguments are W&B's, but for the seed, which becomes a tag."""
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
    def catch_up(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Bring W&B to where a resumed run is.

        An earlier offline directory is renamed to `superseded-...`, because the new one holds all of its rows: `wandb sync` must not upload
        both.

        Args:
            rows: of metrics.jsonl, up to the checkpoint.
        """
        for directory in self._folder.glob("offline-run-*"):
            directory.rename(directory.with_name(f"superseded-{directory.name}"))
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
    """The id that `folder/run_id` keeps, made from the name of the run folder at the first time; unique among all runs of a project."""
    file = folder / "run_id"
    if not file.exists():
        name = re.sub(r"[^A-Za-z0-9_-]", "-", folder.absolute().parent.name)[-100:]
        partial = folder / ".run_id.partial"
        partial.write_text(f"{name}-{secrets.token_hex(4)}\n", encoding="utf-8")
        partial.replace(file)
    return file.read_text(encoding="utf-8").strip()
