"""Lightning's table of metrics, complete after a resume."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import rank_zero_only

from bapo_lightning.callbacks.loggers.run_logger import Row, RunLogger


class RunCSVLogger(CSVLogger, RunLogger):
    """`CSVLogger` that a resume does not leave without earlier rows."""

    @rank_zero_only
    def catch_up(self, rows: Sequence[Row]) -> None:
        """Writes the table again from `rows`; CSVLogger would delete the earlier one with a warning."""
        shutil.rmtree(self.log_dir, ignore_errors=True)
        for row in rows:
            self.log_metrics({name: value for name, value in row.items() if name != "step"}, row["step"])
        self.save()
