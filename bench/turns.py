"""Two trainers in processes of their own take turns: one cycle (a rollout batch and all updates on it) of the
one, then one of the other.

    runner:  Worker(command)   --go-->   worker: works until its cycle ends   --what it took-->   runner

The idle one waits for its pipe and uses no core. Standard library only: one of the two runs in TRL's
environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

PIPE = "BENCH_TURNS_PIPE"  # environment variable with the number of the worker's end


class Worker:
    """The runner's side: a process that works when told to."""

    def __init__(self, command: Sequence[str], log: Path, environment: dict[str, str]) -> None:
        """`log` gets what the command prints; `environment` is added to this process's own."""
        self._log = log
        self._pipe, theirs = Pipe()
        with log.open("w") as output:
            self._process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                env=os.environ | environment | {PIPE: str(theirs.fileno())},
            )
        theirs.close()
        self._started = False

    def cycle(self) -> dict[str, Any]:
        """Let it make one cycle; the first one includes its start. Ends this program when the process
        dies.
        """
        try:
            if self._started:
                self._pipe.send("go")
            self._started = True
            return self._pipe.recv()
        except (EOFError, OSError):
            words = " ".join(map(str, self._process.args))  # type: ignore[arg-type, union-attr]
            sys.exit(f"{words}\nended with {self._process.wait()}:\n{self._log.read_text()[-3000:]}")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._pipe.close()


class Turns:
    """The worker's side."""

    def __init__(self) -> None:
        self._pipe = Connection(int(os.environ[PIPE]))
        self._start()

    def hand_over(self, measured: dict[str, Any]) -> None:
        """A cycle is done: say what was measured, with its wall and CPU seconds, and wait for the next turn.
        The process ends when the runner is gone.
        """
        taken = {"wall": time.perf_counter() - self._wall, "cpu": time.process_time() - self._cpu}
        self._pipe.send(taken | measured)
        try:
            self._pipe.recv()
        except EOFError:
            os._exit(0)
        self._start()

    def _start(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()
