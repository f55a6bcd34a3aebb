"""Ends a process with the one that started it, however that ends.

- `end_with_parent`, at once: helpers, and ranks, of which none can save the run alone
- `end_with_starter`, by SIGTERM: runs of a sweep, which save themselves first
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

_STARTER = "BAPO_STARTED_BY"  # variable: number of the process that a command must not outlive
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


def kill(process: subprocess.Popen[bytes], owner: int) -> None:
    """Ends a process and its group, without a zombie; does nothing in a fork of its `owner`."""
    if os.getpid() != owner:
        return
    # macOS gives no permission for a group of zombies.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _get_at_the_end_of_the_parent(number: signal.Signals) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def popen_to_end_with(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Starts a command that calls `end_with_parent`, from a thread that lasts as long as the command: the end
    of the calling thread is not that of this process. Raises what Popen raises.
    """
    started: Future[subprocess.Popen[bytes]] = Future()

    def last() -> None:
        try:
            process = subprocess.Popen(command, **options)
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(process)
        with suppress(ChildProcessError):  # someone else waited for it first
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

    threading.Thread(target=last, name="end-with-parent", daemon=True).start()
    return started.result()


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
        threading.Thread(target=_end_after, args=(number,), name="end-with-starter", daemon=True).start()


def _end_after(number: int) -> None:
    while os.getppid() == number:
        time.sleep(_LOOK_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
