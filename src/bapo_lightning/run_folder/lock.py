"""One process at a time in a run folder."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

from bapo_lightning.errors import CheckpointError


class RunLock:
    """Held until it is released or the process ends; the kernel frees it, so a kill leaves no stale lock.

    A POSIX record lock: unlike one of `flock`, it is not inherited by processes that the run forks and that
    outlive a kill for a moment.
    """

    def __init__(self, folder: Path) -> None:
        """Take the lock of a run folder. Raises CheckpointError when another process has it."""
        path = folder / ".lock"
        self._file = path.open("a+", encoding="utf-8")
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.seek(0)
            holder = self._file.read().strip() or "another process"
            self._file.close()
            raise CheckpointError(
                f"run_folder={folder} is in use by {holder}; wait until it ends, stop it, or write another "
                "run_folder"
            ) from None
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        self._file.flush()

    def release(self) -> None:
        """Let others in."""
        self._file.close()
