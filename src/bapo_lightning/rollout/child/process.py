"""The trainer's end of a `ChildEngine`'s process: starts it, talks to it, notices its death, ends it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from multiprocessing import Pipe
from typing import Any

from bapo_lightning.rollout.child.main import ChildAnswer
from bapo_lightning.rollout.engine import EngineDied
from bapo_lightning.system.host import GROWING_SEGMENTS
from bapo_lightning.system.orphans import end_process, in_background
from bapo_lightning.system.phases import advance
from bapo_lightning.system.supervised import Supervised

STOP_SECONDS = 15  # for an engine to close itself
LOOK_SECONDS = 1.0  # between looks at a process that says nothing
# Set by launchers such as torchrun: they name the trainer's process group, to which the engine's process does
# not belong.
GROUP_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)


class ChildProcess(Supervised):
    """A process of `child.main`. It is not a fork, which may hang after threads were started, nor
    multiprocessing's spawn, which imports the trainer's main module again. `end` ends it at once, and a
    thread that waits for its answer gets EngineDied.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            number = theirs.fileno()
            super().__init__(
                [sys.executable, "-m", "bapo_lightning.rollout.child.main", str(number), str(os.getpid())],
                inherited() | dict(environment),
                pass_fds=[number],
            )

    def ask(self, message: Any, deadline_seconds: float) -> tuple[str, Any]:
        """Sends a message and waits for the answer: its first word and its content. Counts ended samples in
        the present phase. Raises EngineDied when the process ended, or did not answer in time and was killed.
        """
        with self._deadline(deadline_seconds):
            self._connection.send(message)
            counted = 0
            while True:
                while not self._connection.poll(LOOK_SECONDS):
                    if self.process.poll() is not None and not self._connection.poll():
                        raise EOFError
                answer, content = self._connection.recv()
                if answer != ChildAnswer.COUNT:
                    return answer, content
                advance(content - counted)
                counted = content

    def call(self, message: Any, deadline_seconds: float) -> Any:
        """Asks for something that is done at once; returns its value. Raises its error, or EngineDied."""
        return self.ask(message, deadline_seconds)[1].result()

    def stop(self) -> None:
        """Lets the engine close itself, then ends its process. Only while no thread waits for an answer."""
        with contextlib.suppress(OSError):
            self._connection.send(None)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)
        self.end()
        self._connection.close()

    @contextlib.contextmanager
    def _deadline(self, seconds: float) -> Iterator[None]:
        """Kills the process after `seconds`: only its death ends a write into a pipe that is not read."""
        overdue, answered = threading.Event(), threading.Event()

        def end() -> None:
            if not answered.wait(seconds):
                overdue.set()
                self.end()

        in_background("deadline", end, end_process)
        try:
            yield
        except (EOFError, OSError):
            # it closes its pipe a moment before it ends
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(LOOK_SECONDS)
            self.end()
            overrun = f"it did not answer within {seconds:g} s and was killed"
            raise EngineDied(overrun if overdue.is_set() else end_of(self.process.wait())) from None
        except BaseException:  # such as a second Ctrl-C: the next message would get the answer to this one
            self.end()
            raise
        finally:
            answered.set()


def end_of(code: int) -> str:
    """How a process ended, by its exit code."""
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended with exit code {code}"


def inherited() -> dict[str, str]:
    """This process's environment without what names its process group or was chosen for its training."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in GROUP_VARIABLES and not name.startswith("TORCHELASTIC_") and value != GROWING_SEGMENTS
    }
