"""Gives loggers that a resume leaves behind the rows that they lack."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lightning.pytorch.loggers import CSVLogger, Logger
from lightning.pytorch.utilities import rank_zero_only

from bapo_lightning.callbacks.loggers.wandb import RunWandbLogger


@rank_zero_only
def catch_up(loggers: Iterable[Logger], rows: Sequence[Mapping[str, Any]]) -> None:
    """Bring every logger to the last of `rows`, the lines of metrics.jsonl up to the checkpoint that a run
    goes on from.
    """
    for logger in loggers:
        if isinstance(logger, RunWandbLogger):
            logger.catch_up(rows)
        elif isinstance(logger, CSVLogger):
            shutil.rmtree(
                logger.log_dir, ignore_errors=True
            )  # it would delete its earlier table itself, with a warning
            for row in rows:
                logger.log_metrics(
                    {name: value for name, value in row.items() if name != "step"}, row["step"]
                )
            logger.save()
