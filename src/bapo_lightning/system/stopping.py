"""Signals that ask this process to stop: Ctrl-C, SIGTERM, SIGHUP.

    before the first update and after the last one   `Stopped` is raised: there is nothing to save
    from then on                                     the update ends and is saved (callbacks/graceful_stop.py)
    at the second signal                             the process ends at once, also inside native code

The handlers are installed from the first line of a command. Only the answer to a signal changes.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn, TextIO

from bapo_lightning.system.printable import say

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME_SECONDS = 0.05  # `timeout` sends its signal to the process and to its group: both are one request
Answer = Callable[[signal.Signals], None]


class Stopped(SystemExit):
    """A signal stopped this process; the exit code is 128 and the number of the signal, as in a shell."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


class Request:
    """The request that stops this process."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.answer: Answer = at_once
        self._earlier: dict[int, Any] = {}  # handlers to put back; empty if our handlers are not installed
        self._owner = 0
        self._ends_next = False

    @property
    def code(self) -> int:
        """Exit code of a process that was stopped; 0 if it was not."""
        return 0 if self.received is None else 128 + self.received

    def code_after(self, code: int) -> int:
        """Exit code of a process that failed with `code`: of the stop, if that may have caused the error."""
        return code and (self.code or code)

    def listen(self) -> None:
        """Installs the handlers, except for ignored signals: with nohup a run outlives its terminal."""
        self.received, self._ends_next, self._owner = None, False, os.getpid()
        heard = [number for number in STOPPING if signal.getsignal(number) is not signal.SIG_IGN]
        self._earlier = {number: signal.signal(number, self._hear) for number in heard}

    def end_at_next(self) -> None:
        """Lets the next signal end the process, also inside native code, where no handler runs."""
        self._ends_next = True
        for number, handler in self._earlier.items():
            signal.signal(number, handler if _is_of_session(number) else signal.SIG_DFL)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._owner:  # in a fork that runs something else
            end_by(number)
        for each in self._earlier:
            signal.signal(each, lambda *_: None)
        time.sleep(SAME_SECONDS)
        for each in self._earlier:
            signal.signal(each, self._hear)
        if self._ends_next:  # Lightning put this handler back
            end_by(number)
        self.received = signal.Signals(number)
        self.answer(self.received)

    def restore(self) -> None:
        """Puts the earlier handlers back."""
        for number, handler in self._earlier.items():
            signal.signal(number, handler)
        self._earlier = {}

    @property
    def is_heard(self) -> bool:
        """Whether the handlers are installed by this process."""
        return bool(self._earlier) and self._owner == os.getpid()


def end_by(number: int) -> NoReturn:
    """Ends this process by a signal, as the system does."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    raise Stopped(number)  # blocked by a caller


def _is_of_session(number: int) -> bool:
    # A notebook outlives its run.
    return number == signal.SIGINT and hasattr(sys, "ps1")


def say_in_handler(text: str, stream: TextIO | None = None) -> None:
    """Prints a line from a handler, unless the signal interrupted another print."""
    with suppress(RuntimeError):
        say(text, stream)


def at_once(number: signal.Signals) -> None:
    """Raises Stopped: no update is in progress."""
    stop.end_at_next()
    say_in_handler("interrupted" if number == signal.SIGINT else f"stopped by {number.name}", sys.stderr)
    raise Stopped(number)


def record_signal(number: signal.Signals) -> None:
    """Only records the signal: another rank decides."""
    stop.end_at_next()


def as_usual(number: signal.Signals) -> None:
    """Does what Python does without a handler."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    end_by(number)


stop = Request()


@contextmanager
def handled(number: signal.Signals, handler: Any) -> Iterator[None]:
    """Context in which a signal has this handler, and after which it has its present one again. Does nothing
    outside the main thread, which alone can set handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, previous)


@contextmanager
def heard(answer: Answer = at_once) -> Iterator[None]:
    """Context in which signals that request a stop get this answer. Only the main thread can install
    handlers; in another thread signals do what they did before.
    """
    is_outermost = threading.current_thread() is threading.main_thread() and not stop.is_heard
    previous, stop.answer = stop.answer, answer
    if is_outermost:
        stop.listen()
    try:
        yield
    except Stopped as stopped:
        if is_outermost and _is_of_session(stopped.number):
            raise KeyboardInterrupt from None
        raise
    finally:
        stop.answer = previous
        if is_outermost:
            stop.restore()
