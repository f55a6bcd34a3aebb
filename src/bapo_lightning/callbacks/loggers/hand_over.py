"""What W&B is told of a run besides its rows: the configuration at the start; summary, manifest and sampled
texts at the end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger

from bapo_lightning.callbacks.loggers.wandb import RunWandbLogger
from bapo_lightning.run_folder.record import read_manifest


def describe_run(loggers: Iterable[Logger], config: Mapping[str, Any]) -> None:
    """At the start, or when the run goes on."""
    for logger in loggers:
        if isinstance(logger, RunWandbLogger):
            logger.describe(config)


def conclude_run(loggers: Iterable[Logger], folder: Path, summary: Mapping[str, Any]) -> None:
    """At the end, however it came: the table holds all that is in rollouts.jsonl, also from before a resume.

    Args:
        loggers: of the trainer.
        folder: of the run.
        summary: of `report.summary.write_summary`.
    """
    for logger in loggers:
        if isinstance(logger, RunWandbLogger):
            logger.conclude(summary, read_manifest(folder), _read_rollouts(folder / "rollouts.jsonl"))


def _read_rollouts(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [json.loads(line) for line in lines if line.strip()]
