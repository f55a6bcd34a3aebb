"""Loggers that survive a resume: the interface, and those that write into the run folder."""

from __future__ import annotations

import shutil
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger, Logger
from lightning.pytorch.utilities import rank_zero_only

from bapo_lightning.system.run_folder.journal import Journal

Row = Mapping[str, Any]


class RunLogger(Logger):
    """Logger of a run. Its methods do nothing by default; other Lightning loggers only get `log_metrics`."""

    def describe(self, config: Mapping[str, Any]) -> None:
        """Receives the resolved configuration, before any row: at the start, and at every resume."""

    def catch_up(self, rows: Sequence[Row]) -> None:
        """Brings the logger to the last of `rows`, the lines of metrics.jsonl before the resume."""

    def log_texts(self, rows: Sequence[Row]) -> None:
        """Receives the texts that were just appended to rollouts.jsonl."""

    def conclude(
        self, summary: Mapping[str, Any], manifest: Mapping[str, Any], rollouts: Sequence[Row]
    ) -> None:
        """Receives the results, however the run ended; `rollouts` are all rows of rollouts.jsonl."""


class MetricsFile(Logger):
    """Appends one JSON object per update to `metrics.jsonl`, synced to disk when the update ends.

    Lightning's CSVLogger rewrites earlier rows on resume and W&B's offline file loses its tail on a kill;
    neither can be the record.
    """

    name, version = "metrics_file", ""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._journal = Journal(folder / "metrics.jsonl", durable=True)

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Does nothing: the resolved configuration is in `config.yaml`."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Appends a row."""
        self._journal.append([{"step": step, **metrics}])


class RunCSVLogger(CSVLogger, RunLogger):
    """Lightning's table of metrics, which keeps its earlier rows after a resume."""

    @staticmethod
    def problems(options: Mapping[str, Any]) -> Iterator[str]:
        """Yields names that lead out of the folder, and a number of rows that never comes."""
        for name in ("name", "version"):
            folder = Path(str(options[name]))
            if folder.anchor or ".." in folder.parts:
                yield f"{name}={folder} is not a folder within the run folder; write {name}=csv"
        if (rows := options["flush_logs_every_n_steps"]) < 1:
            yield f"flush_logs_every_n_steps={rows} must be a whole number of at least 1"

    @rank_zero_only
    def catch_up(self, rows: Sequence[Row]) -> None:
        """Writes the table again from `rows`; CSVLogger would delete the earlier one with a warning."""
        shutil.rmtree(self.log_dir, ignore_errors=True)
        log_rows(self, rows)
        self.save()


def log_rows(logger: Logger, rows: Sequence[Row]) -> None:
    """Logs lines of metrics.jsonl."""
    for row in rows:
        logger.log_metrics({name: value for name, value in row.items() if name != "step"}, row["step"])
