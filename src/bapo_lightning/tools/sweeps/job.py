"""One run of a sweep: a separate training process, with its console output in a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bapo_lightning.system.orphans import started_by_this
from bapo_lightning.system.stopping import STOPPING, handled

STOPPED = 130  # exit code of a run that was stopped before its end, or never started
# SLURM's notice that a job will be stopped, as submitit asks for it; it goes to every process of the job.
NOTICE = signal.SIGUSR2


class JobFailed(RuntimeError):
    """A job of one of Hydra's launchers ended with another exit code than 0, its argument."""


@dataclass
class TrainJob:
    """Trains or resumes one run. It can be pickled."""

    overrides: tuple[str, ...]  # with `run_folder` and `resume=auto`, and options of Hydra
    folder: Path  # of the run; the console output is appended to a file next to it, `<folder>.log`
    began: float | None = field(default=None, init=False)  # time.monotonic, in this process
    _process_id: int | None = field(default=None, init=False)

    @property
    def command(self) -> list[str]:
        """Command of the training process."""
        return [sys.executable, "-m", "bapo_lightning.cli.train", *self.overrides]

    def __call__(self, environment: Mapping[str, str] | None = None) -> int:
        """Trains and returns the exit code. `environment` holds variables of this run alone."""
        variables = {**os.environ, **started_by_this(), **(environment or {})}
        self.began = time.monotonic()
        # A new program inherits an ignored signal, but not a handler; the notice would kill the training.
        with log_file(self.folder).open("a", encoding="utf-8") as log, handled(NOTICE, signal.SIG_IGN):
            process = subprocess.Popen(self.command, stdout=log, stderr=subprocess.STDOUT, env=variables)
        self._process_id = process.pid
        resubmit = signal.getsignal(NOTICE)  # of submitit, in its jobs

        def save_first(*notice: Any) -> None:
            self.stop()
            resubmit(*notice)  # type: ignore[operator, misc]

        with handled(NOTICE, save_first if callable(resubmit) else resubmit):
            try:
                code = process.wait()
            except KeyboardInterrupt:  # which the run has got as well
                process.wait()
                raise
        return STOPPED if {code - 128, -code} & {*STOPPING} else code  # by itself, or before it could

    def stop(self) -> None:
        """Lets the run save itself and end after the current update, and waits for that."""
        if self._process_id is not None:
            try:
                os.kill(self._process_id, signal.SIGTERM)  # the run ends after the current update
                # Popen.wait cannot be called here: the call that the signal interrupted holds its lock.
                os.waitid(os.P_PID, self._process_id, os.WEXITED | os.WNOWAIT)
            except (ProcessLookupError, ChildProcessError):  # it has just ended
                pass


def log_file(folder: Path) -> Path:
    """File for the console output of a run: next to its folder, which does not exist beforehand."""
    return folder.with_name(f"{folder.name}.log")
