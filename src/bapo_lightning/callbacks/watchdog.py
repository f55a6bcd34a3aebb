"""Records where a run hangs."""

from __future__ import annotations

import faulthandler
import sys
import threading
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from lightning import Callback, LightningModule, Trainer

from bapo_lightning.callbacks.order import Order
from bapo_lightning.system.orphans import in_background, print_failure
from bapo_lightning.system.printable import say
from bapo_lightning.system.values import MinutesOrZero


class Watchdog(Callback):
    """Appends the stacks of all threads to `watchdog.log` if no update ends for so long; the run continues.

    It uses a thread, not `faulthandler.dump_traceback_later`, the only such timer of a process, which an
    engine uses (`rollout.vllm.containment.Deadline`). Native code that hangs without releasing the
    interpreter lock stops this thread as well. Comes last, to watch other callbacks at the end of training.
    """

    order: ClassVar[Order] = Order.WATCH

    def __init__(self, folder: str, minutes: MinutesOrZero) -> None:
        """`folder` of the run; `minutes` without progress after which it writes, or 0 for never."""
        self.path = Path(folder, "watchdog.log")
        self._seconds = min(60 * minutes, threading.TIMEOUT_MAX)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._progress = (0.0, "")  # time and description of the last progress

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the thread; ranks other than 0 have their own file."""
        self._stop()
        if not self._seconds:
            return
        if trainer.global_rank:
            self.path = self.path.with_name(f"watchdog-rank{trainer.global_rank}.log")
        self._progress = time.monotonic(), "training started"
        self._ended = threading.Event()
        self._thread = in_background("watchdog", partial(self._watch, self._ended), print_failure)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Notes the progress."""
        self._progress = time.monotonic(), f"update {batch_idx + 1} ended"

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stops the thread."""
        self._stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Stops the thread."""
        self._stop()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Stops the thread."""
        self._stop()

    def _stop(self) -> None:
        self._ended.set()
        if self._thread is not None:
            # The thread may be writing; if it hangs, it is a daemon and does not keep the process alive.
            self._thread.join(timeout=10)
            self._thread = None

    def _watch(self, ended: threading.Event) -> None:
        due = time.monotonic() + self._seconds
        while not ended.wait(max(due - time.monotonic(), 0)):
            now, (since, what) = time.monotonic(), self._progress
            if now - since < self._seconds:
                due = since + self._seconds
            else:
                self._report(now - since, what)
                due = now + self._seconds

    def _report(self, idle: float, what: str) -> None:
        message = f"nothing has happened for {idle / 60:.3g} minutes, since {what}"
        where = f"the stacks of all threads are in {self.path}"
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {message}\n")
                file.flush()  # faulthandler bypasses Python's buffer
                faulthandler.dump_traceback(file, all_threads=True)
                file.write("\n")
        except OSError as error:
            where = f"{self.path} cannot be written ({error.strerror})"
        advice = "if updates are meant to take longer, raise callbacks.watchdog.minutes (0 is off)"
        say(f"warning: {message}; {where}. The run continues; {advice}", sys.stderr)
