"""Ends a run after the current update on Ctrl-C, SIGTERM or SIGHUP, with everything saved."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, ClassVar

from lightning import Callback, LightningModule, Trainer

from bapo_lightning.callbacks.order import Order

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class GracefulStop(Callback):
    """Asks the trainer to stop at the first signal. A second one acts as it would without this callback.

    Comes before `RunCheckpoint`, which saves the update at which the trainer is asked. A signal that arrives
    while it saves takes effect one update later; otherwise the trainer would end with updates that no
    checkpoint holds.
    """

    order: ClassVar[Order] = Order.STOP

    def __init__(self) -> None:
        self.received: str | None = None
        self._previous: dict[int, Any] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Installs the handlers, if this is the main thread: no other may."""
        if threading.current_thread() is not threading.main_thread():
            return

        def stop(number: int, frame: FrameType | None) -> None:
            self.received = signal.Signals(number).name
            if trainer.is_global_zero:
                print(f"\n{self.received}: stopping after this update; once more to stop at once", flush=True)
            self._restore()

        # One that is ignored stays so: nohup wants a run to outlive its terminal.
        heard = [number for number in STOPPING if signal.getsignal(number) is not signal.SIG_IGN]
        self._previous = {number: signal.signal(number, stop) for number in heard}

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Asks the trainer to stop."""
        if self.received is not None:
            trainer.should_stop = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restores the earlier handlers."""
        self._restore()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Restores the earlier handlers."""
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
