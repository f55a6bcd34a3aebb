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
NOTICE = signal.SIGUSR2  # SLURM's notice that a job will be stopped, as submitit asks for it


class TrainJob:
    """Trains or resumes one run. It can be pickled, and submitit submits it again when its time is up."""

    def __init__(self, overrides: Sequence[str], folder: Path, num_threads: int | None = None) -> None:
        """
        Args:
            overrides: overrides of the run, with `run_folder` and `resume=auto`.
            folder: folder of the run; the console output is appended to a file beside it, `<folder>.log`.
            num_threads: CPU threads of the run; None: as the environment has it.
        """
        self.overrides = tuple(overrides)
        self.folder = folder
        self.num_threads = num_threads
        self._process_id: int | None = None

    @property
    def command(self) -> list[str]:
        """Command of the training process."""
        return [sys.executable, "-m", "bapo_lightning.cli.train", *self.overrides]

    def __call__(self, environment: Mapping[str, str] | None = None) -> int:
        """Trains and returns the exit code. `environment` holds variables of this run alone."""
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
        """Lets the run save itself and submits the same job again; submitit calls it in a signal handler when
        the job must make room.
        """
        from submitit.helpers import DelayedSubmission

        if self._process_id is not None:
            try:
                os.kill(self._process_id, signal.SIGTERM)  # the run ends after the current update
                # Popen.wait cannot be called here: the call that the signal interrupted holds its lock.
                os.waitid(os.P_PID, self._process_id, os.WEXITED | os.WNOWAIT)
            except (ProcessLookupError, ChildProcessError):  # it has just ended
                pass
        return DelayedSubmission(type(self)(self.overrides, self.folder, self.num_threads), *args, **kwargs)


def log_file(folder: Path) -> Path:
    """Returns the file for the console output of a run: beside its folder, which does not exist
    beforehand.
    """
    return folder.with_name(f"{folder.name}.log")


def has_finished(folder: Path) -> bool:
    """Whether a run reached its end; one that was asked to stop also exits with code 0."""
    try:
        return bool(read_manifest(folder).get("status") == "finished")
    except DataError:
        return False


class _NoticeIgnored:
    """Makes new processes ignore the notice, which SLURM sends to every process of a job; the default action
    would kill the training.

    A new program inherits an ignored signal, but not a handler. Only the main thread can change signals; the
    threads of a local sweep need not, for they do not run under SLURM.
    """

    def __enter__(self) -> None:
        self._previous: Any = None
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(NOTICE, signal.SIG_IGN)

    def __exit__(self, *exception: object) -> None:
        if self._previous is not None:
            signal.signal(NOTICE, self._previous)
