"""Lets no process outlive the one that started it, however that ends, and no thread fail without an owner.

- `end_with_parent`, at once: helpers, and ranks, of which none can save the run alone
- `end_with_starter`, by SIGTERM: runs of a sweep, which save themselves first
- `in_background`: every thread of the package

`BOUND` before a command makes it one that ends with its starter at once: this file, run as a program.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial

FAILED = 70  # exit code of a process whose guard failed: EX_SOFTWARE
_STARTER = "BAPO_STARTED_BY"  # variable: number of the process that a command must not outlive
BOUND = (sys.executable, "-IS", __file__)
_LOOK_SECONDS = 0.5
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def end_with_parent(parent: int | None = None) -> None:
    """Lets Linux kill this process when the thread that started it ends, even inside native code or while
    this process is stopped; at once if `parent`, the number of the process that started it, is gone already.
    """
    _get_at_the_end_of_the_parent(signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def wake_with_parent() -> None:
    """Lets Linux continue this process when the thread that started it ends: one that is stopped could not
    see that its parent is gone.
    """
    _get_at_the_end_of_the_parent(signal.SIGCONT)


def _get_at_the_end_of_the_parent(number: signal.Signals) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def started_by_this() -> dict[str, str]:
    """Variables for a command that is to end with this process (see `end_with_starter`)."""
    return {_STARTER: str(os.getpid())}


def starter() -> int | None:
    """Number of the process that gave this one `started_by_this`; None without."""
    return int(os.environ[_STARTER]) if _STARTER in os.environ else None


def end_with_starter() -> None:
    """Sends this process SIGTERM once its starter has exited, also while it is stopped, if it was given
    `started_by_this`. The kernel's own signal would come once for each thread, and a second SIGTERM stops a
    run at once.
    """
    if (number := starter()) is not None:
        wake_with_parent()
        in_background("end-with-starter", partial(_end_after, number), end_process)


def _end_after(number: int) -> None:
    while os.getppid() == number:
        time.sleep(_LOOK_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def in_background(
    name: str, work: Callable[[], object], failed: Callable[[BaseException], object]
) -> threading.Thread:
    """Starts a daemon thread that does the work and hands what it raises to `failed`, in the same thread.
    `failed` must wake those who wait for the work.
    """

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            failed(error)

    thread = threading.Thread(target=guarded, name=name, daemon=True)
    thread.start()
    return thread


def print_failure(error: BaseException) -> None:
    """Owner of threads without which a process can continue, such as those that only report."""
    name, reason = threading.current_thread().name, f"{type(error).__name__}: {error}"
    print(f"the thread {name!r} failed ({reason}); all others continue", file=sys.stderr, flush=True)


def end_process(error: BaseException) -> None:
    """Owner of threads without which a process cannot continue, such as those that end it with its parent."""
    traceback.print_exception(error)
    name = threading.current_thread().name
    print(f"error: the thread {name!r} failed, so this process ends", file=sys.stderr, flush=True)
    os._exit(FAILED)


if __name__ == "__main__":
    end_with_parent(starter())
    os.execvp(sys.argv[1], sys.argv[1:])
