"""Ends a process with the one that started it, however that ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

_STARTER = "BAPO_STARTED_BY"  # variable: number of the process that a command must not outlive
_LOOK_SECONDS = 0.5
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def end_with_parent() -> None:
    """Lets Linux kill this process when the thread that started it ends, even inside native code."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def started_by_this() -> dict[str, str]:
    """Variables for a command that is to end with this process (see `end_with_starter`)."""
    return {_STARTER: str(os.getpid())}


def end_with_starter() -> None:
    """Sends this process SIGTERM once its starter has exited, if it was given `started_by_this`. The kernel's
    own signal would come once for each thread, and a second SIGTERM stops a run at once.
    """
    if _STARTER in os.environ:
        starter = int(os.environ[_STARTER])
        threading.Thread(target=_end_after, args=(starter,), name="end-with-starter", daemon=True).start()


def _end_after(starter: int) -> None:
    while os.getppid() == starter:
        time.sleep(_LOOK_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
