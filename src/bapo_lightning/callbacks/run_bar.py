"""Progress of training, on a terminal."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from bapo_lightning.report.progress.display import Pace, Place, bar_line, shown, wrapped


class RunBar(ProgressBar):
    """Updates done out of all, time left, and the newest of the numbers that are logged with `prog_bar=True`.

    Replaces Lightning's own bars, whose unit is the epoch: a run has only one.
    """

    def __init__(self, num_updates: int, num_before: int, updates_per_rollout_batch: int) -> None:
        """`num_updates` of the whole run, `num_before` of them in earlier sessions."""
        super().__init__()
        self._total, self._done, self._cycle = num_updates, num_before, updates_per_rollout_batch
        self._numbers: dict[str, Any] = {}
        self._start = time.monotonic()
        self._pace = Pace(num_before, self._cycle, self._start)
        self._shown = ExitStack()

    def enable(self) -> None:
        """Does nothing: only rank 0 has a bar."""

    def disable(self) -> None:
        """Does nothing, for the same reason."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Shows the bar."""
        self._shown.enter_context(shown(Place.RUN, self))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts to measure the pace: models are loaded, and the work before the first update is done."""
        self._pace = Pace(self._done, self._cycle, time.monotonic())

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Notes the update and its numbers."""
        self._done = batch_idx + 1
        self._pace.note(self._done, time.monotonic())
        self._numbers = dict(trainer.progress_bar_metrics)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Removes the bar."""
        self._shown.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Removes the bar."""
        self._shown.close()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Two lines: the bar, and as many numbers as fit below it."""
        now = time.monotonic()
        label = f"update {self._done}/{self._total}"
        yield bar_line(label, self._done, self._total, now - self._start, self._pace.left(self._total, now))
        numbers = (f"{name} {number_text(value)}" for name, value in self._numbers.items())
        first, *_ = *wrapped(numbers, options.max_width), ""
        yield Text(first, no_wrap=True, overflow="crop")


def number_text(value: Any) -> str:
    """A number of the bar; a dash if it is undefined in this update."""
    if not isinstance(value, int | float):
        return str(value)
    return "-" if math.isnan(value) else f"{value:.3f}"
