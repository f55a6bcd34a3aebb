"""What malloc does with freed memory."""

from __future__ import annotations

import ctypes
import os
import platform

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # malloc.h: M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
LARGEST_MMAP_THRESHOLD = 32 << 20  # bytes; glibc takes no larger one
NEVER = 2**31 - 1  # bytes


def keep_freed_memory() -> None:
    """Let glibc keep what is freed in blocks below 32 MiB for the next update, instead of giving it back to the kernel: each page would be
    faulted in, and zeroed, again. Nothing where the user's environment sets malloc's options, and on other C libraries.
    """
    chosen = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if platform.libc_ver()[0] == "glibc" and not chosen:
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
        mallopt(TRIM_THRESHOLD, NEVER)
