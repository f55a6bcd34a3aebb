"""Ends a run after the current update on Ctrl-C, SIGTERM or SIGHUP, with everything saved."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Any, ClassVar

from lightning import Callback, LightningModule, Trainer

from bapo_lightning.callbacks.order import Order
from bapo_lightning.ranks.collectives import max_over_ranks
from bapo_lightning.ranks.launch import STOPPING


class GracefulStop(Callback):
    """Asks the trainer to stop at the first signal that any rank receives; a second one ends the process,
    also inside native code and whatever it waits for, as the system does it where Python has no handler.

    Comes before `RunCheckpoint`, which saves the update at which the trainer is asked. A signal that arrives
    meanwhile takes effect one update later, so that the trainer ends with an update that is saved.
    """

    order: ClassVar[Order] = Order.STOP

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._previous: dict[int, Any] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Installs the handlers, if this is the main thread: no other may."""
        if threading.current_thread() is not threading.main_thread():
            return

        def stop(number: int, frame: FrameType | None) -> None:
            self.received = signal.Signals(number)
            if trainer.is_global_zero:
                text = f"\n{self.received.name}: stopping after this update; once more to stop at once"
                print(text, flush=True)
            self._end_at_next()

        # One that is ignored stays so: nohup wants a run to outlive its terminal.
        heard = [number for number in STOPPING if signal.getsignal(number) is not signal.SIG_IGN]
        self._previous = {number: signal.signal(number, stop) for number in heard}

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Asks the trainer to stop. All ranks learn why, as rank 0 writes how the run ended."""
        if number := max_over_ranks(self.received or 0):
            self.received = signal.Signals(number)
            trainer.should_stop = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restores the earlier handlers, unless a signal came: what is left may be ended at once."""
        if self.received is None:
            self._restore()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Restores the earlier handlers."""
        self._restore()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Restores the earlier handlers."""
        self._restore()

    def _end_at_next(self) -> None:
        # Not the earlier handlers: Lightning's notes SIGTERM and goes on.
        for number, handler in self._previous.items():
            is_of_session = number == signal.SIGINT and hasattr(sys, "ps1")  # a notebook outlives its run
            signal.signal(number, handler if is_of_session else signal.SIG_DFL)

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}


def stop_code(trainer: Trainer) -> int:
    """Exit code of a run that a signal stopped, 128 and the signal's number as in a shell; 0 if none did."""
    stops = (callback for callback in trainer.callbacks if isinstance(callback, GracefulStop))  # type: ignore[attr-defined]
    return next((128 + stop.received for stop in stops if stop.received is not None), 0)
