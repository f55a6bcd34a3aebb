"""Child processes, none of which outlives this one, whose forks leave them alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, TypeAlias

from bapo_lightning.system.orphans import in_background, started_by_this

Process: TypeAlias = subprocess.Popen[bytes]
Ask: TypeAlias = Callable[[Process], object]
_PASSED_ON = ("PATH", "TMPDIR", "LANG", "LC_ALL")
_START_SECONDS = 300.0  # to import large modules, on a machine that is busy with other things
_END_SECONDS = 10.0
_SOURCE = Path(__file__).resolve().parents[2]
_LAST_BYTES = 2000  # of an output, in which its last line is looked for


class Supervised:
    """A command in its own session: no Ctrl-C of the terminal reaches it, and it is ended together with all
    that it started, at the latest with the last reference to this object or when Python ends. It must call
    `end_with_parent(starter())`, or see the end of its standard input, to end when this process is killed.

    Args:
        command: the program and its arguments.
        environment: all its variables except the mark of `started_by_this`.
        seconds: time to end after it was asked to.
        ask: asks it to end; does nothing by default.
        pipe: asks it to end by being closed; a fork closes its copy, too.
        options: other options of Popen.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        seconds: float = 0.0,
        ask: Ask = subprocess.Popen.poll,
        pipe: Connection | None = None,
        **options: Any,
    ) -> None:
        options = {"stdin": subprocess.DEVNULL, **options, "start_new_session": True}
        self.process = _popen(command, env={**environment, **started_by_this()}, **options)
        # Ends the process and its group; a second call does nothing.
        self.end = weakref.finalize(self, _end, self.process, os.getpid(), seconds, ask, pipe)


class CleanProcess(Supervised):
    """A fresh interpreter that serves this process over two pipes, and holds nothing of it: no environment
    with secrets, no threads, CUDA or locks.

        this process --requests--> module
                     <--replies---

    Runs `python -m module REQUESTS REPLIES *arguments` (two file descriptors), with no other `variables`,
    and with the modules of these folders in addition to the installed ones. The module calls
    `end_with_parent(starter())`, ends with the pipe of requests, and writes no errors once it is ready.
    """

    def __init__(
        self, module: str, *arguments: str, variables: Mapping[str, str], folders: Sequence[str] = ()
    ) -> None:
        their_requests, self.requests = Pipe(duplex=False)
        self.replies, their_replies = Pipe(duplex=False)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        path = os.pathsep.join([str(_SOURCE), *folders])
        pipes = (their_requests.fileno(), their_replies.fileno())
        with their_requests, their_replies:
            super().__init__(
                [sys.executable, "-P", "-m", module, *map(str, pipes), *arguments],
                passed_on() | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", **variables},
                seconds=_END_SECONDS,
                pipe=self.requests,
                pass_fds=pipes,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
            )

    def first_reply(self) -> bytes:
        """Returns the first message of the module. Raises ChildProcessError if it ends before."""
        with suppress(EOFError):
            if self.replies.poll(_START_SECONDS):
                return self.replies.recv_bytes()
        self.process.kill()
        self.end()
        raise ChildProcessError(last_line(self._errors) or "no message")


def signal_group(process: Process, number: int = signal.SIGTERM) -> None:
    """Sends a signal to all that is left of a process's group."""
    # macOS gives no permission for a group of zombies.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def passed_on(*more: str) -> dict[str, str]:
    """PATH, TMPDIR, the language and `more` from the variables of this process: none that holds a secret."""
    return {name: os.environ[name] for name in (*_PASSED_ON, *more) if name in os.environ}


def last_line(output: IO[bytes]) -> str:
    """The last line that a process has written to a file; "" if it has written nothing."""
    output.seek(max(0, output.seek(0, os.SEEK_END) - _LAST_BYTES))
    return (output.read().decode(errors="replace").strip().splitlines() or [""])[-1]


def _popen(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Starts a command from a thread that lasts as long: Linux ends it with the thread that started it."""
    started: Future[subprocess.Popen[bytes]] = Future()

    def last() -> None:
        process = subprocess.Popen(command, **options)
        started.set_result(process)
        with suppress(ChildProcessError):  # someone else waited for it first
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

    in_background("end-with-parent", last, started.set_exception)
    return started.result()


def _end(process: Process, owner: int, seconds: float, ask: Ask, pipe: Connection | None) -> None:
    if pipe is not None:
        pipe.close()
    if os.getpid() != owner:
        return
    ask(process)
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    signal_group(process, signal.SIGKILL)
    process.wait()
