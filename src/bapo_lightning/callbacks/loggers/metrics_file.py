"""The run's own record: an append-only JSONL file that survives a kill."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from bapo_lightning.run_folder.journal import Journal


class MetricsFile(Logger):
    """Appends one JSON object per update to `metrics.jsonl` and syncs it to disk when the update ends.

    Lightning's CSVLogger rewrites earlier rows on resume and W&B's offline file loses its tail on a kill;
    neither can be the record.
    """

    def __init__(self, folder: Path) -> None:
        """`folder` must exist."""
        super().__init__()
        self._journal = Journal(folder / "metrics.jsonl", durable=True)

    @property
    def name(self) -> str:
        """Name of the logger for Lightning."""
        return "metrics_file"

    @property
    def version(self) -> str:
        """Version of the logger for Lightning."""
        return ""

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Does nothing: the resolved configuration is in `config.yaml`."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Appends a row."""
        self._journal.append([{"step": step, **metrics}])
