"""One run of a sweep: a training process of its own, with its console output in a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bapo_lightning.errors import DataError
from bapo_lightning.run_folder.record import read_manifest

STOPPED = 130  # exit code of a run that was stopped before its end, or never begun
# SLURM's notice that a job will be stopped, as submitit asks for it.
NOTICE = signal.SIGUSR2


class TrainJob:
    """Trains one run to its end, or goes on with it. Can be pickled, and resubmitted by submitit when its
    time is up.
    """

    def __init__(self, overrides: Sequence[str], folder: Path, num_threads: int | None = None) -> None:
        """
        Args:
            overrides: of the run, with `run_folder` and `resume=auto`.
            folder: of the run; the console output is appended to a file beside it, `<folder>.log`.
            num_threads: of the CPU; None: whatever the environment says.
        """
        self.overrides = tuple(overrides)
        self.folder = folder
        self.num_threads = num_threads
        self._process_id: int | None = None

    @property
    def command(self) -> list[str]:
        """What is started."""
        return [sys.executable, "-m", "bapo_lightning.cli.train", *self.overrides]

    def __call__(self, environment: Mapping[str, str] | None = None) -> int:
        """Run; returns the exit code. `environment`: variables of this run alone."""
        threads = {} if self.num_threads is None else {"OMP_NUM_THREADS": str(self.num_threads)}
        with log_file(self.folder).open("a", encoding="utf-8") as log, _NoticeIgnored():
            process = subprocess.Popen(
                self.command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **threads, **(environment or {})},
            )
        self._process_id = process.pid
        code = process.wait()
        return STOPPED if code == 0 and not has_finished(self.folder) else code

    def checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        """Called by submitit in a signal handler when the job must make room: the run saves itself, and the
        same job is submitted again.
        """
        from submitit.helpers import DelayedSubmission

        if self._process_id is not None:
            try:
                os.kill(self._process_id, signal.SIGTERM)  # the run ends after the update at hand
                # Popen.wait cannot be called here: the interrupted call of it holds its lock.
                os.waitid(os.P_PID, self._process_id, os.WEXITED | os.WNOWAIT)
            except (ProcessLookupError, ChildProcessError):  # it has just ended by itself
                pass
        return DelayedSubmission(type(self)(self.overrides, self.folder, self.num_threads), *args, **kwargs)


def log_file(folder: Path) -> Path:
    """Where the console output of the run in `folder` goes; its folder may not exist before it begins."""
    return folder.with_name(f"{folder.name}.log")


def has_finished(folder: Path) -> bool:
    """Whether a run reached its end; one that was asked to stop ends in order, too."""
    try:
        return bool(read_manifest(folder).get("status") == "finished")
    except DataError:
        return False


class _NoticeIgnored:
    """While it lasts, new processes ignore the notice, which SLURM sends to every process of a job; the
    default would kill the training.

    Ignoring is inherited by a new program, a handler is not. Only a main thread can say so; a sweep's own
    threads are not under SLURM.
    """

    def __enter__(self) -> None:
        self._previous: Any = None
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(NOTICE, signal.SIG_IGN)

    def __exit__(self, *exception: object) -> None:
        if self._previous is not None:
            signal.signal(NOTICE, self._previous)
