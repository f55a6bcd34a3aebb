"""Weights & Biases: one W&B run for each run folder, across kills and resumes."""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from bapo_lightning.callbacks.loggers.run_logger import Row, RunLogger, log_rows
from bapo_lightning.callbacks.run_manifest import git_commit
from bapo_lightning.report.metrics import EXPECTED
from bapo_lightning.system.errors import first_line
from bapo_lightning.system.printable import say
from bapo_lightning.system.run_folder.text_file import write_text

STEP = "trainer/global_step"
MANIFEST = "manifest"  # key of W&B's configuration that holds the run's manifest
STALENESS = "staleness"  # key of W&B's configuration: updates on each rollout batch
ROLLOUTS, SAMPLES = "rollouts", "samples"  # tables: all texts at the end, the newest while training


def survived(method: Callable[..., None]) -> Callable[..., None]:
    """Wraps a method so that it survives W&B, whose process may die: warns once, then stops logging."""

    @wraps(method)
    def guarded(self: RunWandbLogger, *args: Any, **options: Any) -> None:
        if self.is_lost:
            return
        try:
            method(self, *args, **options)
        except Exception as error:
            self.lose(error)

    return guarded


class RunWandbLogger(WandbLogger, RunLogger):
    """A run of W&B: its group is the sweep, or else the protocol (scale/regime), its job type the algorithm,
    its tags seed, commit and staleness.

    Its id is kept in the run folder. A kill loses the tail of W&B's rows, or leaves rows that a resume cuts
    off; `catch_up` sends the missing rows, and nothing is sent twice.
    """

    def __init__(
        self,
        project: str,
        offline: bool,
        group: str,
        job_type: str,
        name: str,
        seed: int,
        folder: str,
        entity: str | None = None,
        tags: Sequence[str] = (),
        notes: str | None = None,
    ) -> None:
        """`folder` is the run folder, the seed becomes a tag, the other arguments are W&B's."""
        self._folder = Path(folder, "wandb")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._last_step = -1  # newest step that W&B has from an earlier session
        self.is_lost = False  # whether W&B failed in this session
        super().__init__(
            project=project,
            offline=offline,
            group=group,
            job_type=job_type,
            name=name,
            tags=[*tags, f"seed-{seed}", f"commit-{git_commit() or 'unknown'}"],
            entity=entity,
            notes=notes,
            save_dir=folder,
            id=run_id(self._folder),
            resume=None if offline else "allow",  # an offline run cannot know what the server has
        )
        self._wandb_init.pop("anonymous", None)  # Lightning's; W&B warns of it, whatever its value

    @property
    def experiment(self) -> Any:
        """W&B's run, made at the first access; a placeholder once W&B is lost."""
        try:
            return self._experiment if self.is_lost else super().experiment
        except Exception as error:
            self.lose(error)
            return self._experiment

    def lose(self, error: Exception) -> None:
        """Warns once that W&B failed."""
        if self.is_lost:
            return
        self.is_lost = True
        text = (
            f"W&B is lost ({type(error).__name__}: {first_line(error)}): the run continues without it. "
            "metrics.jsonl has every row; a resume sends the missing ones"
        )
        say(text, sys.stderr)

    @rank_zero_only
    @survived
    def describe(self, config: Mapping[str, Any]) -> None:
        """Sends the resolved configuration, and the choice of statistics for W&B's summary."""
        # The new offline directory will hold all rows of the earlier ones; `wandb sync` must only upload it.
        for directory in self._folder.glob("offline-run-*"):
            directory.rename(directory.with_name(f"superseded-{directory.name}"))
        run = self.experiment
        run.config.update(dict(config), allow_val_change=True)
        if STALENESS in config:
            run.tags = (*(run.tags or ()), staleness_tag(config[STALENESS]))
        for metric in EXPECTED:  # W&B's default is the last value alone, which is noisy
            summary = f"last,{'max' if metric.is_largest_watched else 'min'},mean"
            run.define_metric(metric.logged, step_metric=STEP, summary=summary)

    @rank_zero_only
    @survived
    def log_texts(self, rows: Sequence[Row]) -> None:
        """Sends a table of the newest texts, which W&B shows by step."""
        if rows and rows[0]["step"] > self._last_step:
            self.experiment.log({SAMPLES: _table(rows), STEP: rows[0]["step"]})

    @rank_zero_only
    @survived
    def conclude(
        self, summary: Mapping[str, Any], manifest: Mapping[str, Any], rollouts: Sequence[Row]
    ) -> None:
        """Sends the summary below `final/`, the manifest, and a table of the sampled texts."""
        run = self.experiment
        run.config.update({MANIFEST: dict(manifest)}, allow_val_change=True)
        final = {f"final/{key}": value for key, value in flat_numbers(summary).items()}
        run.summary.update({"status": manifest.get("status"), **final})
        if rollouts:
            run.log({ROLLOUTS: _table(rollouts)})

    @rank_zero_only
    @survived
    def catch_up(self, rows: Sequence[Row]) -> None:
        """Sends the rows that W&B does not have yet."""
        last: Any = self.experiment.summary.get(STEP)  # from the server; an offline run starts empty
        self._last_step = -1 if last is None else int(last)
        log_rows(self, rows)

    @rank_zero_only
    @survived
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Sends a row unless W&B already has it."""
        if step is None or step > self._last_step:
            super().log_metrics(metrics, step)

    finalize = rank_zero_only(survived(WandbLogger.finalize))


def is_logged_in() -> bool:
    """Whether W&B has credentials here, or uploads nothing; asks neither the user nor its server."""
    import wandb

    is_local = os.environ.get("WANDB_MODE", "").lower() in ("offline", "dryrun", "disabled")
    return is_local or wandb.login(prompt=False, verify=False)


def staleness_tag(staleness: int) -> str:
    """Tag of runs with this many updates on each rollout batch."""
    return f"staleness-{staleness}"


def run_id(folder: Path) -> str:
    """Id in `folder/run_id`, made when it is first needed; unique among all runs of a project."""
    file = folder / "run_id"
    if not file.exists():
        name = re.sub(r"[^A-Za-z0-9_-]", "-", folder.absolute().parent.name)[-100:]
        write_text(file, f"{name}-{secrets.token_hex(4)}\n")
    return file.read_text(encoding="utf-8").strip()


def flat_numbers(node: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Returns all numbers of a nested mapping by their path, such as reward/last."""
    numbers: dict[str, float] = {}
    for key, value in node.items():
        if isinstance(value, Mapping):
            numbers |= flat_numbers(value, f"{prefix}{key}/")
        elif isinstance(value, int | float):
            numbers[f"{prefix}{key}"] = value
    return numbers


def _table(rows: Sequence[Row]) -> Any:
    import wandb

    columns: list[str | int] = list(dict.fromkeys(name for row in rows for name in row if name != "tokens"))
    return wandb.Table(columns=columns, data=[[_cell(row, str(name)) for name in columns] for row in rows])


def _cell(row: Row, name: str) -> Any:
    # A column of a W&B table has one type, and W&B shows no lists.
    value = row.get(name)
    if name == "turns" and value is not None:
        return "\n".join(f"{turn['by']}: {turn['text']}" for turn in value)
    return " ".join(map(str, value)) if isinstance(value, list) else value
