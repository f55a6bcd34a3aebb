"""A fresh interpreter that serves this process over two pipes, and holds nothing of it: no environment with
secrets, no threads, CUDA or locks.

    this process --requests--> module
                 <--replies---
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from bapo_lightning.orphans import popen_to_end_with, started_by_this

_START_SECONDS = 300.0  # to import large modules, on a machine that is busy with other things
_END_SECONDS = 10.0
_PASSED_ON = ("PATH", "TMPDIR", "LANG", "LC_ALL")  # variables
_SOURCE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class CleanProcess:
    """The process, the pipes to and from it, and the process that started it."""

    process: subprocess.Popen[bytes]
    requests: Connection
    replies: Connection
    owner: int

    def first_reply(self) -> bytes:
        """What the module says when it is ready. Raises ChildProcessError if it ends before."""
        try:
            if not self.replies.poll(_START_SECONDS):
                raise EOFError
            reply = self.replies.recv_bytes()
        except EOFError:
            self.process.kill()
            _, errors = self.process.communicate()
            lines = errors.decode(errors="replace").strip().splitlines()
            raise ChildProcessError(lines[-1] if lines else "no message") from None
        assert self.process.stderr is not None
        self.process.stderr.close()
        return reply

    def end(self, seconds: float = _END_SECONDS) -> None:
        """Lets the module end, and kills it after so many seconds; a forked copy only lets go of its pipe."""
        self.requests.close()
        if self.owner != os.getpid():
            return
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start(
    module: str, *arguments: str, variables: Mapping[str, str], folders: Sequence[str] = ()
) -> CleanProcess:
    """Starts `python -m module REQUESTS REPLIES *arguments` (two file descriptors), with no other
    `variables`, and with modules of these folders beside the installed ones. The module calls
    `end_with_parent(starter())`.
    """
    (their_requests, requests), (replies, their_replies) = Pipe(duplex=False), Pipe(duplex=False)
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    path = os.pathsep.join([str(_SOURCE), *folders])
    pipes = (their_requests.fileno(), their_replies.fileno())
    with their_requests, their_replies:
        process = popen_to_end_with(
            [sys.executable, "-P", "-m", module, *map(str, pipes), *arguments],
            pass_fds=pipes,
            env={**environment, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **started_by_this(), **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,  # until it is ready
            start_new_session=True,  # Ctrl-C is for the trainer to handle
        )
    return CleanProcess(process, requests, replies, os.getpid())
