"""Ends a run after the current update on Ctrl-C, SIGTERM or SIGHUP, with everything saved."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from typing import Any, ClassVar

from lightning import Callback, LightningModule, Trainer

from bapo_lightning.callbacks.order import Order
from bapo_lightning.system.ranks.collectives import max_over_ranks
from bapo_lightning.system.stopping import Answer, heard, record_signal, say_in_handler, stop


class GracefulStop(Callback):
    """Asks the trainer to stop at the first signal that any rank receives after the first update started;
    before that the signal has stopped the run directly (`stopping`).

    Comes before `RunCheckpoint`, which saves the update at which the trainer is asked to stop. A signal that
    arrives in between takes effect one update later, so that the trainer ends with an update that is saved.
    """

    order: ClassVar[Order] = Order.STOP

    def __init__(self) -> None:
        self._handlers = ExitStack()
        self._before: Answer | None = None  # during updates: the answer to a signal between runs

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leaves SIGTERM to the run: Lightning notes the signal, ends with exit code 0 and saves nothing. On
        several ranks its handler even waits for the other ranks.
        """
        trainer._signal_connector._sigterm_notifier_fn = lambda *_: None  # type: ignore[method-assign]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Installs the handlers, unless the run has done so."""
        self._handlers.enter_context(heard(stop.answer))

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """From now on there is an update to save."""
        if self._before is None:
            self._before = stop.answer
            stop.answer = _after_this_update if trainer.is_global_zero else record_signal

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Asks the trainer to stop. All ranks learn the reason, as rank 0 writes how the run ended."""
        if number := max_over_ranks(stop.received or 0):
            stop.received = signal.Signals(number)
            trainer.should_stop = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """From now on there is nothing to save. Lightning puts back its own handlers after this."""
        self._end()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Does the same."""
        self._end()

    def _end(self) -> None:
        if self._before is not None:
            stop.answer, self._before = self._before, None
        self._handlers.close()


def _after_this_update(number: signal.Signals) -> None:
    stop.end_at_next()
    say_in_handler(f"\n{number.name}: stopping after this update; once more to stop at once")


def stop_code(trainer: Trainer) -> int:
    """Exit code of a run that a signal stopped, 128 and the signal's number as in a shell; 0 if none did."""
    return stop.code if any(isinstance(each, GracefulStop) for each in trainer.callbacks) else 0  # type: ignore[attr-defined]
