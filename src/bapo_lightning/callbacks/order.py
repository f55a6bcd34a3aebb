"""The order in which callbacks act on an update, whatever their order in the configuration."""

from __future__ import annotations

from enum import IntEnum

from lightning import Callback


class Order(IntEnum):
    """Phases at the end of an update. A callback without an `order`, such as a stock one, reacts."""

    MEASURE = 0  # monitors add metrics to the update's outputs
    ALARM = 1  # alarms compare metrics, and count as monitors
    WRITE = 2  # loggers and files get what was measured
    REACT = 3  # stock and custom callbacks read `trainer.callback_metrics`
    EXPORT = 4
    DESCRIBE = 5  # the manifest records the state of the run
    WATCH = 6
    STOP = 7  # a signal ends training
    SAVE = 8  # a checkpoint holds a complete update: rows, and the states of all other callbacks


def in_order(callbacks: list[Callback]) -> list[Callback]:
    """Sorts by phase; callbacks of one phase keep their order."""
    return sorted(callbacks, key=lambda callback: getattr(callback, "order", Order.REACT))
