"""Ends a process with the one that started it, however that ends."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def end_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Lets the kernel send this process a signal when the thread that started it ends, even if this one is
    stopped or inside native code then. Does nothing elsewhere than on Linux.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
