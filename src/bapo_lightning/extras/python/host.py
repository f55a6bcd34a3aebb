"""A process that passes programs on and watches them.

It is a fresh interpreter with its own environment, and has one thread, so that it can fork. It ends
when the trainer closes its pipe or dies, also in the middle of a program. Messages are JSON: `code` in,
`[text, failed]` out; the first message out says that the host is ready, or why it is not.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from bapo_lightning.extras.python.program import ERROR, CallLimits
from bapo_lightning.extras.python.scratch import is_too_large, remove_abandoned, scratch
from bapo_lightning.extras.python.zygote import Zygote
from bapo_lightning.system.limits import MEGABYTE
from bapo_lightning.system.orphans import end_with_parent, starter

_LOOK_SECONDS = 0.1  # between looks at a program's files
_READ_BYTES = 1 << 16


class Output:
    """Beginning and end of a text, together of at most `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._head, self._tail = bytearray(), bytearray()
        self._head_bytes, self._tail_bytes = max_bytes - max_bytes // 2, max_bytes // 2
        self._left_out = 0

    def add(self, data: bytes) -> None:
        """Takes more of the text."""
        taken = self._head_bytes - len(self._head)
        self._head += data[:taken]
        self._tail += data[taken:]
        surplus = max(0, len(self._tail) - self._tail_bytes)
        del self._tail[:surplus]
        self._left_out += surplus

    def read(self, pipe: int) -> bool:
        """Takes what a pipe holds that does not block; returns false at its end."""
        try:
            data = os.read(pipe, _READ_BYTES)
        except BlockingIOError:
            return True
        self.add(data)
        return bool(data)

    @property
    def kept(self) -> bytes:
        """Both, one behind the other."""
        return bytes(self._head + self._tail)

    def text(self) -> str:
        """Returns the text, with a note where something was left out."""
        if not self._left_out:
            return self.kept.decode(errors="replace")
        head, tail = self._head.decode(errors="replace"), self._tail.decode(errors="replace")
        return f"{head}\n[{self._left_out} bytes left out]\n{tail}"


@dataclass(slots=True)
class _Program:
    pid: int
    output_pipe: int
    outcome_pipe: int
    scratch: Path
    deadline: float
    output: Output
    outcome: Output
    stopped: str = ""  # why the host ended it


class Host:
    """Runs programs, one at a time."""

    def __init__(self, requests: Connection, replies: Connection, limits: CallLimits, zygote: Zygote) -> None:
        self._requests, self._replies, self._limits, self._zygote = requests, replies, limits, zygote

    def serve(self) -> None:
        """Says that it is ready, and answers until the trainer or the zygote is gone."""
        remove_abandoned()
        try:
            self._reply(*self.run(json.dumps("pass").encode()))
            while True:
                self._reply(*self.run(self._requests.recv_bytes()))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return

    def _reply(self, text: str, failed: bool) -> None:
        self._replies.send_bytes(json.dumps([text, failed]).encode())

    def run(self, code: bytes) -> tuple[str, bool]:
        """Returns a program's text, and whether it failed. Raises EOFError without a caller, or OSError."""
        with scratch() as folder:
            program = self._started(code, folder)
            try:
                self._watch(program)
            finally:
                status = self._zygote.end()
                program.output.read(program.output_pipe)
                os.close(program.output_pipe)
                os.close(program.outcome_pipe)
        return self._outcome(program, status)

    def _started(self, code: bytes, folder: Path) -> _Program:
        (output, their_output), (outcome, their_outcome) = os.pipe(), os.pipe()
        with open(os.memfd_create("program"), "wb", buffering=0) as source:
            source.write(code)
            source.seek(0)
            pid = self._zygote.start(folder, source.fileno(), their_output, their_outcome)
        os.close(their_output)
        os.close(their_outcome)
        os.set_blocking(output, False)
        os.set_blocking(outcome, False)
        deadline, size = time.monotonic() + self._limits.seconds, self._limits.output_bytes
        return _Program(pid, output, outcome, folder, deadline, Output(size), Output(size + 1))

    def _watch(self, program: _Program) -> None:
        """Reads until the program closes the pipe of its outcome, or has to be stopped."""
        pipes = select.poll()
        for pipe in (program.output_pipe, program.outcome_pipe, self._requests.fileno()):
            pipes.register(pipe, select.POLLIN)
        next_look = time.monotonic() + _LOOK_SECONDS
        while (now := time.monotonic()) < program.deadline:
            if now >= next_look:
                if is_too_large(program.scratch, program.pid, self._limits.file_megabytes * MEGABYTE):
                    program.stopped = "its files are too large or too many"
                    return
                next_look = now + _LOOK_SECONDS
            wait_for = min(program.deadline, next_look) - now
            ready = {pipe for pipe, _ in pipes.poll(max(1, wait_for * 1000))}
            if self._requests.fileno() in ready:
                raise EOFError("the trainer does not wait for this program any more")
            if program.output_pipe in ready and not program.output.read(program.output_pipe):
                pipes.unregister(program.output_pipe)
            if program.outcome_pipe in ready and not program.outcome.read(program.outcome_pipe):
                return
        program.stopped = f"it took more than {self._limits.seconds:g} seconds"

    def _outcome(self, program: _Program, status: int) -> tuple[str, bool]:
        kind, text = program.outcome.kept[:1], program.outcome.kept[1:].decode(errors="replace")
        output, error = program.output.text(), ""
        if program.stopped:
            error = f"Error: the program was stopped: {program.stopped}."
        elif kind == ERROR:
            error = text
        elif status:
            error = f"Error: the program was ended ({_reason(status)})."
        elif not output:
            output = text
        return "\n".join(part.rstrip("\n") for part in (output, error) if part), bool(error)


def _reason(status: int) -> str:
    if os.WIFSIGNALED(status):
        return signal.strsignal(os.WTERMSIG(status)) or "signal"
    return f"exit status {os.WEXITSTATUS(status)}"


def main(requests: int, replies: int, limits: CallLimits, modules: list[str]) -> None:
    """Serves the trainer over two pipes, given as file descriptors, with the modules loaded."""
    end_with_parent(starter())
    zygote = Zygote(limits, modules)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    Host(Connection(requests), Connection(replies), limits, zygote).serve()


if __name__ == "__main__":
    _requests, _replies, _limits, _modules = map(json.loads, sys.argv[1:])
    main(_requests, _replies, CallLimits(**_limits), _modules)
