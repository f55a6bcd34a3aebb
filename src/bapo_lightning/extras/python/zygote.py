"""A process that has modules loaded, and forks a process for every program. It never reads a program or its
output, which bypass it in descriptors, so that none of it is in the memory that programs inherit.

    host --scratch folder; code, output, outcome-->  zygote
         <-process id------------------------------         (the program runs)
         --the end------------------------------->          ends what is left of it
         --the end------------------------------->          ends what is left of it
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from bapo_lightning.extras.python.program import CallLimits, live
from bapo_lightning.system.orphans import end_with_parent

_NUMBER = 8  # bytes of a process id or an exit status
_LONGEST_PATH = 4096
_ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER of <linux/prctl.h>


class Zygote:
    """The host's side: a child that is forked before the host reads the first program."""

    def __init__(self, limits: CallLimits, modules: Sequence[str]) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        host = os.getpid()
        if os.fork() == 0:
            self._channel.close()
            _main(theirs, host, limits, modules)
        theirs.close()

    def start(self, scratch: Path, code: int, output: int, outcome: int) -> int:
        """Starts a program (see `program.live`); returns its id. EOFError, OSError: the zygote is gone."""
        socket.send_fds(self._channel, [os.fsencode(scratch)], [code, output, outcome])
        return self._number()

    def end(self) -> int:
        """Ends the program and everything it left behind; returns its exit status. Raises as `start`."""
        self._channel.send(b"end")
        return self._number()

    def _number(self) -> int:
        if not (received := self._channel.recv(_NUMBER)):
            raise EOFError("the process that forks programs is gone")
        return int.from_bytes(received, signed=True)


def _main(channel: socket.socket, host: int, limits: CallLimits, modules: Sequence[str]) -> None:
    code = 1
    try:
        end_with_parent(host)
        ctypes.CDLL(None).prctl(_ADOPT_ORPHANS, 1)
        for module in modules:
            importlib.import_module(module)
        gc.collect()
        gc.freeze()  # a collection in a program would write to, and so copy, every page of the shared modules
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
        _serve(channel, limits)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _serve(channel: socket.socket, limits: CallLimits) -> None:
    zygote = os.getpid()
    while True:
        scratch, descriptors, _, _ = socket.recv_fds(channel, _LONGEST_PATH, 3)
        if not scratch:
            return
        pid = os.fork()
        if pid == 0:
            live(limits, zygote, Path(os.fsdecode(scratch)), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        channel.send(pid.to_bytes(_NUMBER))
        if not channel.recv(_NUMBER):
            return
        channel.send(_end(pid).to_bytes(_NUMBER, signed=True))


def _end(pid: int) -> int:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)  # if it does not have its own group yet
    _, status = os.waitpid(pid, 0)
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while orphans := children.read_text().split() if children.exists() else []:
        for orphan in orphans:
            os.kill(int(orphan), signal.SIGKILL)
        for orphan in orphans:
            os.waitpid(int(orphan), 0)
    return status
