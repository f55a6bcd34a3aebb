"""A lock that lets one process at a time into a run folder."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

from bapo_lightning.system.errors import CheckpointError


class RunLock:
    """A lock that is held until `release` or the end of the process, even by a kill: the kernel frees it.

    Unlike a lock of `flock`, this POSIX record lock is not inherited by processes that the run forks and that
    outlive a kill for a moment.
    """

    def __init__(self, folder: Path) -> None:
        """Takes the lock of a run folder. Raises CheckpointError if another process has it."""
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
        """Lets other processes take the lock."""
        self._file.close()


def is_held(folder: Path) -> bool:
    """Whether a process has the lock of a run folder. Checked for a run whose status is running."""
    try:
        with (folder / ".lock").open("rb") as file:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # held until the file is closed, which is now
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
